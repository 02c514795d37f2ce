"""What environments make of texts, beside the official evaluators, and what policies earn that know everything, or nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rlvr_debug import environments
from rlvr_debug.audit import ScriptedSampler, audit_rewards
from rlvr_debug.blocks import checked, told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, read_rows
from rlvr_debug.environments import build_environment, gsm8k, task_of
from rlvr_debug.environments.base import Environment, ToolCall, Transcript, refused
from rlvr_debug.environments.calculator import (
    MAX_DEPTH,
    MAX_DIGITS,
    CalculatorRow,
    evaluate,
    synthetic_calculator,
)
from rlvr_debug.environments.gsm8k import GSM8KRow, final_answer
from rlvr_debug.environments.musique import environment as musique
from rlvr_debug.environments.musique.rows import Hop, MuSiQueRow, Paragraph
from rlvr_debug.environments.musique.settings import Settings
from rlvr_debug.environments.rewards import (
    citation_f1,
    exact_match,
    numbers_equal,
    precision,
    recall,
    token_f1,
)
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_yaml, write_jsonl
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.sampling.rollouts import rollout
from rlvr_debug.study.params import load_params

WEIGHTS = Settings().weights
CASES = read_yaml(Path(__file__).with_name("rewards.yaml"))
# words that meet, apart from anything that Unicode has
words = st.lists(
    st.sampled_from(["the", "A", "Paris", "paris,", "new", "York", "1,000", "—", "!", "étoile"])
).map(" ".join)
texts = words | st.text()
some_indices = st.lists(st.integers(0, 8), min_size=1)


# --- scores of texts and paragraphs


@pytest.mark.parametrize(("prediction", "answers", "exact", "f1"), CASES["official"])
def test_answers_score_as_in_the_official_evaluator(
    prediction: str, answers: list[str], exact: float, f1: float
) -> None:
    assert exact_match(prediction, answers) == exact
    assert token_f1(prediction, answers) == pytest.approx(f1)


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_answers_score_between_0_and_1_in_any_order_of_aliases_and_one_more_does_no_harm(
    prediction: str, answers: list[str]
) -> None:
    assert 0 <= exact_match(prediction, answers) <= token_f1(prediction, answers) <= 1
    for score in (exact_match, token_f1):
        assert score(prediction, answers[::-1]) == score(prediction, answers)
        assert score(prediction, [*answers, "another"]) >= score(prediction, answers)
        assert score(prediction, [*answers, prediction]) == 1


@given(st.lists(st.integers(0, 8)), some_indices)
def test_paragraphs_score_between_0_and_1_in_any_order_and_however_often_they_come(
    found: list[int], relevant: list[int]
) -> None:
    for score in (recall, precision, citation_f1):
        assert 0 <= score(found, relevant) <= 1
        assert score(found[::-1] * 2, relevant[::-1] * 2) == score(found, relevant)
        assert score(relevant, relevant) == 1
        assert score([], relevant) == 0
        assert score([index + 9 for index in found], relevant) == 0
    p, r = precision(found, relevant), recall(found, relevant)
    assert citation_f1(found, relevant) == pytest.approx(2 * p * r / (p + r) if p + r else 0)


def test_more_paragraphs_than_needed_cost_precision_and_not_recall() -> None:
    assert recall([0, 1, 2, 3], [1, 2]) == 1
    assert precision([0, 1, 2, 3], [1, 2]) == 0.5
    assert recall([1], [1, 2]) == 0.5
    assert precision([1], [1, 2]) == 1


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


# --- MuSiQue's and GSM8K's rows and settings


def environment(**changes: Any) -> Environment:
    return build_environment("musique", {"top_n": 2, **changes})


def row_of(supporting: str, hops: int = 2, identity: str = "row") -> MuSiQueRow:
    """A paragraph per letter, s for one that supports; the answer is Oslo, or Christiania."""
    paragraphs = tuple(
        Paragraph(i, f"Town {i}", "It is in Norway.", letter == "s")
        for i, letter in enumerate(supporting)
    )
    steps = tuple(Hop(i, "where?", "Oslo", None) for i in range(hops))
    return MuSiQueRow(identity, paragraphs, "Where?", steps, "Oslo", ("Christiania",), True)


ROW = row_of("-s-s-")


def submitted(answer: str, citations: list[Any]) -> Transcript:
    return Transcript([""], submitted={"answer": answer, "citations": citations})


# --- an environment is a folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_new_tokens": 0}, "key 'max_new_tokens' is 0, expected at least 1"),
        ({"weights": {"corect": 1.0}}, "unknown key 'weights.corect': did you mean 'correct'?"),
        ({"top_n": 1}, "unknown key 'top_n': expected one of max_new_tokens, max_context, weights"),
    ],
)
def test_a_mistake_in_an_environments_block_of_params_yaml_is_one_line(
    change: dict[str, Any], said: str
) -> None:
    block = environments.settings_of("gsm8k").Settings
    with pytest.raises(InputError) as error:
        checked(block, {**told(block()), **change}, "params.yaml")
    assert str(error.value) == f"params.yaml: {said}"


# --- what the tiny model has learned


def test_the_shipped_tokenizer_has_a_token_for_each_prompt_and_tool() -> None:
    tokens = {t["content"] for t in read_json(ROOT / "models/tiny/tokenizer.json")["added_tokens"]}
    assert {musique.SYSTEM, json.dumps(musique.TOOL), gsm8k.SYSTEM} <= tokens


# --- MuSiQue: the answer in tags


@pytest.mark.parametrize(("reply", "outcome"), CASES["outcomes"])
def test_the_outcome_tells_an_answer_from_one_without_citation(reply: str, outcome: str) -> None:
    assert environment().outcome(Transcript([reply])) == outcome


# --- MuSiQue: the answer by a call

COMPLETE = environment(answer_by="complete")


def test_complete_is_offered_only_where_answers_are_given_by_it() -> None:
    assert environment().tools == [musique.TOOL]
    assert COMPLETE.tools == [musique.TOOL, musique.COMPLETE]
    assert COMPLETE.messages(ROW)[0]["content"] == musique.SYSTEM_COMPLETE
    assert environment().messages(ROW)[0]["content"] == musique.SYSTEM


@pytest.mark.parametrize(("arguments", "sound"), CASES["calls of complete"])
def test_complete_ends_the_rollout_if_its_arguments_are_sound(
    arguments: dict[str, Any], sound: bool
) -> None:
    call = ToolCall("complete", arguments)
    refusal = refused(call, COMPLETE.tools)
    assert (refusal is None) == sound
    if refusal is None:
        assert COMPLETE.call_tool(ROW, call).ends
    else:
        assert (refusal.error, refusal.ends) == ("bad_arguments", False)
        assert refusal.text == "Error: complete takes answer (string), citations (array)."


@pytest.mark.parametrize(
    ("answer", "citations", "outcome", "exact", "citation"),
    [
        ("Oslo", [3, 1], "answered", 1, 1),
        ("christiania!", [1, 1, 3.0], "answered", 1, 1),
        ("Bergen", [1], "answered", 0, 2 / 3),
        ("Oslo", [-1, 10**300], "answered", 1, 0),
        ("Oslo", [], "answered_without_citation", 1, 0),
        ("", [], "answered_without_citation", 0, 0),
    ],
)
def test_a_submitted_answer_is_scored_from_the_call(
    answer: str, citations: list[Any], outcome: str, exact: float, citation: float
) -> None:
    transcript = submitted(answer, citations)
    assert COMPLETE.outcome(transcript) == outcome
    parts = COMPLETE.score(ROW, transcript)
    assert parts["exact_match"] == exact
    assert parts["citation"] == pytest.approx(citation)
    assert parts["format"] == 1


def test_tags_earn_nothing_where_answers_are_given_by_a_call() -> None:
    told = Transcript(["<answer>Oslo</answer>\n<cite>[1][3]</cite>"])
    assert environment().reward(ROW, environment().score(ROW, told)) > 0
    assert COMPLETE.outcome(told) == "no_answer"
    assert set(COMPLETE.score(ROW, told).values()) == {0}
    # and beside a call they change nothing
    both = Transcript(told.replies, submitted={"answer": "Bergen", "citations": []})
    assert COMPLETE.score(ROW, both) == COMPLETE.score(ROW, submitted("Bergen", []))


def test_a_rollout_that_retrieves_and_completes_earns_everything(chat: Chat) -> None:
    def policy(row: Any, turn: int) -> str:
        arguments = {"answer": "Oslo", "citations": [1, 3]} if turn else {"query": "Norway"}
        name = "complete" if turn else "retrieve_documents"
        call = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>\n{call}\n</tool_call>"

    env = environment(answer_by="complete", retrieval="golden")
    sampler = ScriptedSampler(policy, chat)
    (done,) = rollout([ROW], env, chat, sampler, temperature=0.0, seed=0)
    assert (done.outcome, done.turns) == ("answered", 2)
    assert done.parts == dict.fromkeys(WEIGHTS, 1.0)
    assert done.reward == 1


# --- MuSiQue: noise and hops


@pytest.mark.parametrize("retrieval", ["bm25", "golden"])
@given(st.floats(0, 1), st.text("-s", min_size=1, max_size=12), st.text())
def test_only_what_noise_left_and_all_that_supports_can_be_retrieved(
    retrieval: str, rate: float, supporting: str, query: str
) -> None:
    assume("s" in supporting)
    row = row_of(supporting)
    env = environment(retrieval=retrieval, top_n=len(supporting), noise_rate=rate, noise_seed=1)
    result = env.call_tool(row, ToolCall("retrieve_documents", {"query": query}))
    assert set(row.supporting) <= set(result.indices) <= set(range(len(supporting)))
    kept = round(rate * supporting.count("-")) if retrieval == "bm25" else 0
    assert len(result.indices) == len(row.supporting) + kept
    assert re.findall(r"^\[(\d+)\]", result.text, re.MULTILINE) == list(map(str, result.indices))


@given(st.permutations(sorted(WEIGHTS)), st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_a_reward_is_the_same_to_the_last_bit_in_whatever_order_its_weights_are_written(
    order: list[str], values: list[float]
) -> None:
    turned = environment(weights={name: WEIGHTS[name] for name in order})
    parts = dict(zip(sorted(WEIGHTS), values, strict=True))
    assert turned.reward(ROW, parts) == environment().reward(ROW, parts)


def test_the_hop_factor_multiplies_the_reward_by_half_the_number_of_hops() -> None:
    plain, by_hops = environment(), environment(hop_factor=True)
    for hops in (1, 2, 3, 4):
        row = row_of("-s-s-", hops)
        told = Transcript(["<answer>Oslo</answer><cite>[1]</cite>"], retrieved={1, 2})
        parts = plain.score(row, told)
        assert parts == by_hops.score(row, told)
        assert by_hops.reward(row, parts) == pytest.approx(plain.reward(row, parts) * hops / 2)


replies = st.lists(
    st.sampled_from(
        ["<answer>", "</answer>", "<cite>", "</cite>", "<think>", "</think>", "Oslo", "[1]", "[3]"]
    )
    | st.text(max_size=5)
).map("".join)
transcripts = st.builds(
    Transcript,
    st.lists(replies, max_size=2),
    st.integers(0, 3),
    st.sets(st.integers(0, 4)),
    st.none()
    | st.fixed_dictionaries(
        {"answer": replies, "citations": st.lists(st.integers() | st.just(3.0))}
    ),
)


@given(transcripts, st.sampled_from(["tags", "complete"]))
def test_every_part_and_the_reward_are_between_0_and_1_whatever_was_said(
    transcript: Transcript, answer_by: str
) -> None:
    env = environment(answer_by=answer_by)
    parts = env.score(ROW, transcript)
    assert set(parts) == set(WEIGHTS)
    assert all(0 <= value <= 1 for value in parts.values())
    assert 0 <= env.reward(ROW, parts) <= 1
    assert env.outcome(transcript) in ("answered", "answered_without_citation", "no_answer")


# --- GSM8K

GSM8K = build_environment("gsm8k", {"max_new_tokens": 48, "weights": {"correct": 1.0}})


@pytest.mark.parametrize(("reply", "final"), CASES["marked answers"])
def test_the_last_marked_answer_of_a_reply_counts(reply: str, final: str | None) -> None:
    assert final_answer(reply) == final
    expected = "no_answer" if final is None else "answered"
    assert GSM8K.outcome(Transcript([reply])) == expected
    right = float(final is not None and "18" in final and "17" not in final)
    row = GSM8KRow("row", "How many?", "#### 18")
    assert GSM8K.score(row, Transcript([reply])) == {"correct": right}


@given(
    st.text() | st.lists(st.sampled_from(["####", "\\boxed{", "}", "{", "\\", "7"])).map("".join)
)
@example("\\boxed{" * 2000)
def test_what_is_boxed_has_balanced_braces(reply: str) -> None:
    final = final_answer(reply)
    if final is not None and "####" not in reply:
        plain = re.sub(r"\\[{}]", "", final)
        assert plain.count("{") == plain.count("}")
        assert "\\boxed" in reply


def test_every_real_solution_earns_its_reward_in_either_form_and_another_number_none(
    real: Path,
) -> None:
    for row in read_rows("gsm8k", real / "gsm8k/rows.jsonl"):
        assert isinstance(row, GSM8KRow)
        wrong = int(row.final.replace(",", "")) + 1
        said = {
            row.answer: 1,
            f"So it is \\boxed{{\\${row.final}}}.": 1,
            f"{row.answer}\nNo: \\boxed{{{wrong}}}": 0,
            f"#### {wrong}": 0,
        }
        for reply, correct in said.items():
            assert GSM8K.score(row, Transcript([reply])) == {"correct": correct}


@pytest.mark.parametrize("name", ["oracle", "spoiler"])
def test_a_task_without_the_policies_of_the_audit_is_an_error(name: str) -> None:
    task = task_of("gsm8k")
    others = {key: policy for key, policy in task.policies.items() if key != name}
    said = f"GSM8KRow: policies has no '{name}', it needs oracle and spoiler, found "
    with pytest.raises(InputError, match=said):
        replace(task, policies=others)
    with pytest.raises(InputError, match="found none"):
        replace(task, policies={})


# --- the calculator

STEPS = {1: 0.25, 2: 0.25, 3: 0.25, 4: 0.25}
CALCULATOR = build_environment(
    "calculator", {"max_turns": 5, "max_new_tokens": 40, "weights": {"correct": 1.0}}
)
SUM = CalculatorRow("row", "What is (3 + 4) * 5 - 2?", "33", 3)


def test_the_shipped_model_calls_the_tool_and_stops_after_the_first_computation() -> None:
    rows = list(synthetic_calculator(64, steps={2: 1.0}, seed=11))
    model = ROOT / "models" / "tiny-calculator"
    chat = Chat(model)
    sampler = base_sampler(model, chat)
    done = rollout(rows, CALCULATOR, chat, sampler, temperature=1.0, seed=0)
    calls = Counter(current.transcript.calls for current in done)
    assert calls[1] > 32 > calls[2] > 5
    # there is something to learn, and it is earned now and then
    assert 0.05 < sum(current.reward for current in done) / len(done) < 0.5


expressions = st.recursive(
    st.integers(0, 99).map(str) | st.decimals(0, 99, places=2).map(str),
    lambda below: (
        st.builds("({}) {}({})".format, below, st.sampled_from("+-*/"), below)
        | st.builds("-({})".format, below)
        | st.builds("({})**{}".format, below, st.integers(0, 3))
    ),
    max_leaves=6,
)


@given(expressions)
def test_an_expression_has_the_value_that_python_finds_with_fractions(text: str) -> None:
    result = CALCULATOR.call_tool(SUM, ToolCall("calculate", {"expression": text}))
    fractions = re.sub(r"[\d.]+", r"Fraction('\g<0>')", text)
    beyond = ("more than", "longer than", "too many", "too deep")
    if not result.error:
        assert Fraction(result.text) == eval(fractions)
    elif not any(limit in result.text for limit in beyond):
        with pytest.raises(ZeroDivisionError):
            eval(fractions)


@given(
    st.text(max_size=300)
    | st.text("0123456789.+-*/() ", max_size=300)
    | st.lists(st.sampled_from([*"9()-/ ", "**", ".5", "e9", "99999"])).map("".join)
)
@example("(" * 150 + "1" + ")" * 150)
@example("(" * 99 + "1" + ")" * 99)
@example("-" * 199 + "1")
@example("...")
def test_any_text_has_a_value_of_bounded_size_or_an_error_that_a_model_can_read(text: str) -> None:
    result = CALCULATOR.call_tool(SUM, ToolCall("calculate", {"expression": text}))
    if result.error:
        assert result.error == "bad_arguments"
        assert re.fullmatch(r"Error: [a-z0-9 ,+*/().-]+\.", result.text)
    else:
        value = Fraction(result.text)
        assert max(abs(value.numerator), value.denominator) < 10**MAX_DIGITS
    assert not result.ends


@pytest.mark.parametrize(("expression", "value"), CASES["values of expressions"])
def test_values_are_exact_and_signs_bind_as_in_python(expression: str, value: str) -> None:
    assert str(evaluate(expression)) == value


@pytest.mark.parametrize(("inner", "value"), [("-1", -1), ("(1+2)", 3), ("(2**2)", 4)])
def test_each_part_of_an_expression_is_one_level_deeper(inner: str, value: int) -> None:
    signs = MAX_DEPTH - 2
    assert evaluate("-" * signs + inner) == value
    with pytest.raises(ValueError, match="nested too deep"):
        evaluate("-" * (signs + 1) + inner)


@pytest.mark.parametrize(("expression", "said"), CASES["refused expressions"])
def test_what_is_no_expression_or_beyond_a_limit_is_refused_with_the_reason(
    expression: str, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        evaluate(expression)


def test_a_call_shows_the_value_and_leaves_the_rollout_open() -> None:
    call = ToolCall("calculate", {"expression": "(3 + 4) * 5"})
    assert refused(call, CALCULATOR.tools) is None
    result = CALCULATOR.call_tool(SUM, call)
    assert (result.text, result.error, result.ends, result.indices) == ("35", "", False, ())


@pytest.mark.parametrize(("reply", "outcome", "correct"), CASES["answers of the calculator"])
def test_the_last_answer_counts_and_is_one_number(reply: str, outcome: str, correct: float) -> None:
    transcript = Transcript([reply])
    assert CALCULATOR.outcome(transcript) == outcome
    parts = CALCULATOR.score(SUM, transcript)
    assert parts == {"correct": correct, "used_tool": 0}
    assert CALCULATOR.reward(SUM, parts) == correct


def test_whether_the_tool_was_used_is_recorded_and_not_rewarded() -> None:
    used = Transcript(["<answer>33</answer>"], calls=2)
    parts = CALCULATOR.score(SUM, used)
    assert parts == {"correct": 1, "used_tool": 1}
    assert CALCULATOR.reward(SUM, parts) == 1
    assert CALCULATOR.reward(SUM, {"correct": 0.0, "used_tool": 1.0}) == 0


def solved(question: str) -> Fraction:
    """By another way than the generator's."""
    if question.startswith("What is "):
        return evaluate(question.removeprefix("What is ").removesuffix("?"))
    start, *operations = question.removesuffix(". What is the result?").split(", then ")
    expression = start.removeprefix("Start with ")
    for operation in operations:
        word, number = operation.rsplit(" ", 1)
        sign = {"add": "+", "subtract": "-", "multiply by": "*", "divide by": "/"}[word]
        expression = f"({expression}) {sign} {number}"
    return evaluate(expression)


def test_every_answer_is_that_of_its_question_and_every_form_comes_up() -> None:
    rows = list(synthetic_calculator(600, steps=STEPS, seed=1))
    for row in rows:
        assert numbers_equal(str(solved(row.question)), row.answer) == 1
        operations = re.findall(r" [-+*/] |, then ", row.question)
        assert len(operations) == row.steps == row.hops
    assert {row.question.split()[0] for row in rows} == {"What", "Start"}
    signs = Counter(sign for row in rows for sign in "+-*/" if f" {sign} " in row.question)
    assert min(signs[sign] for sign in "+-*/") > 20
    by_steps = Counter(row.steps for row in rows)
    assert all(100 < by_steps[steps] < 200 for steps in STEPS)


@pytest.mark.parametrize("steps", [{5: 1.0}, {0: 1.0}, {1: 0.0}, {}])
def test_steps_that_no_question_has_are_refused(steps: dict[int, float]) -> None:
    with pytest.raises(InputError, match="expected shares for 1 to 4, not all 0"):
        list(synthetic_calculator(1, steps=steps, seed=0))


def test_prepared_rows_are_read_as_they_were_and_splits_share_no_question(tmp_path: Path) -> None:
    steps = {str(number): share for number, share in STEPS.items()}
    settings = {"source": "synthetic", "rows": 400, "steps": steps, "heldout": 50, "seed": 0}
    prepare("calculator", settings, tmp_path)
    train = read_rows("calculator", tmp_path / "train.jsonl")
    heldout = read_rows("calculator", tmp_path / "heldout.jsonl")
    assert len(train) + len(heldout) == 400
    assert not {row.question for row in train} & {row.question for row in heldout}
    every: list[Any] = [*train, *heldout]
    generated = list(synthetic_calculator(400, steps=STEPS, seed=0))
    assert sorted(every, key=lambda row: str(row.id)) == sorted(generated, key=lambda row: row.id)


@given(st.fractions())
def test_any_fraction_may_be_an_answer(value: Fraction) -> None:
    row = {**SUM.to_json(), "answer": str(value)}
    assert CalculatorRow.parse(row, "here").answer == str(value)


# --- what policies that know everything, or nothing, earn


PARAMS = load_params(ROOT / "params.yaml")
DOCS = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
ROWS = {row.split(" | ")[0].removeprefix("| "): row for row in DOCS.splitlines(keepends=True)}


def audit(name: str, rows: list[Path], tmp_path: Path, **changes: Any) -> dict[str, Any]:
    settings = {**PARAMS.settings(name), **changes}
    audit_rewards(name, settings, ROOT / "models" / "tiny", rows, tmp_path / "audit.json")
    found: dict[str, Any] = read_json(tmp_path / "audit.json")
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
    rows = [tmp_path / "rows.jsonl"]
    write_jsonl(rows[0], [row | rest])
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
