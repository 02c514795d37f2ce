"""Rewards against the official evaluators, and what policies earn that know everything, or nothing."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.audit import audit_rewards
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import task_of
from rlvr_debug.environments.gsm8k import GSM8KRow
from rlvr_debug.environments.musique.rows import MuSiQueRow
from rlvr_debug.environments.rewards import (
    citation_f1,
    exact_match,
    normalize_answer,
    numbers_equal,
    precision,
    recall,
    token_f1,
)
from rlvr_debug.study.params import load_params

# words that meet, apart from anything that Unicode has
words = st.lists(
    st.sampled_from(["the", "A", "Paris", "paris,", "new", "York", "1,000", "—", "!", "étoile"])
).map(" ".join)
texts = words | st.text()
answer_lists = st.lists(texts, min_size=1, max_size=4)
index_lists = st.lists(st.integers(0, 8))
some_indices = st.lists(st.integers(0, 8), min_size=1)


CASES = yaml.safe_load(Path(__file__).with_name("rewards.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("prediction", "answers", "exact", "f1"), CASES["official"])
def test_answers_score_as_in_the_official_evaluator(
    prediction: str, answers: list[str], exact: float, f1: float
) -> None:
    assert exact_match(prediction, answers) == exact
    assert token_f1(prediction, answers) == pytest.approx(f1)


@given(texts)
def test_a_normalized_answer_stays_as_it_is(text: str) -> None:
    normalized = normalize_answer(text)
    assert normalize_answer(normalized) == normalized


@given(texts, answer_lists)
def test_every_answer_scores_between_0_and_1_and_f1_no_less_than_exact_match(
    prediction: str, answers: list[str]
) -> None:
    assert 0 <= exact_match(prediction, answers) <= token_f1(prediction, answers) <= 1


@given(texts, answer_lists)
def test_the_order_of_the_aliases_does_not_matter_and_one_more_does_no_harm(
    prediction: str, answers: list[str]
) -> None:
    for score in (exact_match, token_f1):
        assert score(prediction, answers[::-1]) == score(prediction, answers)
        assert score(prediction, [*answers, "another"]) >= score(prediction, answers)
        assert score(prediction, [*answers, prediction]) == 1


@given(words, words)
def test_f1_is_the_harmonic_mean_of_the_precision_and_recall_of_words(
    prediction: str, answer: str
) -> None:
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = (Counter(predicted) & Counter(expected)).total()
    if common:
        of_predicted, of_expected = common / len(predicted), common / len(expected)
        mean = 2 * of_predicted * of_expected / (of_predicted + of_expected)
        assert token_f1(prediction, [answer]) == pytest.approx(mean)
    else:
        assert token_f1(prediction, [answer]) == float(predicted == expected)


def test_every_real_answer_and_alias_is_right_and_the_next_row_s_is_not(real: Path) -> None:
    rows = read_rows("musique", real / "musique/rows.jsonl")
    expected = [[r.answer, *r.answer_aliases] for r in rows if isinstance(r, MuSiQueRow)]
    assert len(expected) == 120
    for answers in expected:
        assert all(exact_match(a, answers) == token_f1(a, answers) == 1 for a in answers)
    wrong = [exact_match(a[0], b) for a, b in pairwise(expected)]
    assert sum(wrong) / len(wrong) < 0.05


# --- paragraphs


@given(index_lists, some_indices)
def test_retrieval_and_citation_score_between_0_and_1(
    found: list[int], relevant: list[int]
) -> None:
    for score in (recall, precision, citation_f1):
        assert 0 <= score(found, relevant) <= 1
        assert score(relevant, relevant) == 1
        assert score([], relevant) == 0
        assert score([index + 9 for index in found], relevant) == 0


@given(index_lists, some_indices)
def test_neither_order_nor_repetition_of_paragraphs_matters(
    found: list[int], relevant: list[int]
) -> None:
    for score in (recall, precision, citation_f1):
        assert score(found[::-1] * 2, relevant[::-1] * 2) == score(found, relevant)


@given(index_lists, some_indices)
def test_citation_is_the_harmonic_mean_of_precision_and_recall(
    cited: list[int], supporting: list[int]
) -> None:
    p, r = precision(cited, supporting), recall(cited, supporting)
    assert citation_f1(cited, supporting) == pytest.approx(2 * p * r / (p + r) if p + r else 0)


def test_more_paragraphs_than_needed_cost_precision_and_not_recall() -> None:
    assert recall([0, 1, 2, 3], [1, 2]) == 1
    assert precision([0, 1, 2, 3], [1, 2]) == 0.5
    assert recall([1], [1, 2]) == 0.5
    assert precision([1], [1, 2]) == 1


# --- numbers


@pytest.mark.parametrize(
    ("prediction", "answer", "equal"),
    # the last is too long for int()
    [*CASES["numbers"], ("8" * 5000, "8" * 5000, False)],
)
def test_numbers_are_equal_as_exact_numbers(prediction: str, answer: str, equal: bool) -> None:
    assert numbers_equal(prediction, answer) == equal


@given(st.text(st.sampled_from("0123456789.,/-+ eE$%٣²½#")), st.text() | st.just("7"))
def test_no_text_breaks_the_comparison_of_numbers(prediction: str, answer: str) -> None:
    assert numbers_equal(prediction, answer) in (0, 1)
    assert numbers_equal(answer, prediction) == numbers_equal(prediction, answer)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_a_number_is_equal_to_itself_with_separators_and_decimals_and_to_no_other(
    one: int, other: int
) -> None:
    sign = "-" if one < 0 else ""
    spellings = [f"{one}", f"{one:,}", f"{one:,}.00", f"$ {one}.", f"{one} km", f"{2 * one}/2"]
    spellings += [f"{sign}\\${abs(one):,}.0", f"{sign}\\frac{{{2 * abs(one)}}}{{2}}"]
    for spelled in spellings:
        assert numbers_equal(spelled, str(one)) == 1
        assert numbers_equal(spelled, str(other)) == (one == other)


def test_every_real_gsm8k_answer_is_a_number_equal_to_itself_only(real: Path) -> None:
    rows = read_rows("gsm8k", real / "gsm8k/rows.jsonl")
    finals = [row.final for row in rows if isinstance(row, GSM8KRow)]
    assert len(finals) == 500
    for final in finals:
        assert numbers_equal(f" {final}\n", final) == 1
        assert numbers_equal(f"{final}1", final) == 0
        assert numbers_equal(f"{int(final.replace(',', '')) + 1:,}", final) == 0


# --- what policies that know everything, or nothing, earn


PARAMS = load_params(ROOT / "params.yaml")
DOCS = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
ROWS = {row.split(" | ")[0].removeprefix("| "): row for row in DOCS.splitlines(keepends=True)}


def audit(name: str, rows: list[Path], tmp_path: Path, **changes: Any) -> dict[str, Any]:
    settings = {**PARAMS.settings(name), **changes}
    audit_rewards(name, settings, ROOT / "models" / "tiny", rows, tmp_path / "audit.json")
    found: dict[str, Any] = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    return found


def means(of: dict[str, Any], parts: list[str]) -> str:
    return " | ".join(f"{of[part]['mean']:.3f}" for part in parts)


def test_on_real_musique_rows_the_oracle_earns_all_and_the_spoiler_loses_on_each(
    real: Path, tmp_path: Path
) -> None:
    found = audit("musique", [real / "musique/rows.jsonl"], tmp_path, top_n=3)
    oracle = found["oracle golden"]
    assert oracle.pop("rows") == 120
    assert {part["lowest"] for part in oracle.values()} == {1.0}
    assert found["oracle_beaten"] == []
    parts = ["reward", "exact_match", "f1", "recall", "precision", "citation", "format"]
    for policy in task_of("musique").policies:
        assert f"\n| {policy} | {means(found[f'{policy} bm25'], parts)} | " in DOCS


def test_an_oracle_is_beaten_by_what_the_reward_pays_and_not_by_a_retriever_that_misses(
    tmp_path: Path,
) -> None:
    asked = {"idx": 0, "title": "Ada", "paragraph_text": "Born in Rome.", "is_supporting": True}
    alike = {"idx": 1, "title": "Who", "paragraph_text": "who wrote it", "is_supporting": False}
    hop = {"id": 1, "question": "who wrote it", "answer": "Rome", "paragraph_support_idx": 0}
    row = {"id": "a", "paragraphs": [asked, alike], "question": "who wrote it?", "answer": "Rome"}
    rest = {"question_decomposition": [hop], "answer_aliases": [], "answerable": True}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | rest), encoding="utf-8")
    rows = [tmp_path / "rows.jsonl"]
    found = audit("musique", rows, tmp_path, top_n=1, weights={"recall": 1.0})
    assert [found[f"oracle {by}"]["recall"]["mean"] for by in ("bm25", "golden")] == [0, 1]
    assert found["oracle_beaten"] == []
    assert audit("musique", rows, tmp_path, weights={"format": 1.0})["oracle_beaten"] == ["a"]


def test_nobody_earns_a_number_but_by_knowing_it_or_by_chance(real: Path, tmp_path: Path) -> None:
    gsm8k = audit("gsm8k", [real / "gsm8k/rows.jsonl"], tmp_path)
    prepare("calculator", PARAMS.data_settings("calculator"), tmp_path)
    rows = [tmp_path / f"{split}.jsonl" for split in ("train", "heldout")]
    calculator = audit("calculator", rows, tmp_path)
    assert (gsm8k["oracle"]["rows"], calculator["oracle"]["rows"]) == (500, 2000)
    for policy in task_of("gsm8k").policies:
        earned = f"{means(gsm8k[policy], ['correct'])} | {means(calculator[policy], ['correct'])}"
        assert f" | {earned} |\n" in ROWS[policy]
        if policy not in ("oracle", "answer without retrieval"):
            assert gsm8k[policy]["correct"]["mean"] < 0.03
            assert calculator[policy]["correct"]["mean"] < 0.03
    assert calculator["oracle"]["used_tool"]["lowest"] == 1
