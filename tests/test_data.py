import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.data.prepare import Splits, prepare, read_rows, separate, split
from rlvr_debug.data.rows import Row
from rlvr_debug.environments.gsm8k import GSM8KRow, synthetic_gsm8k
from rlvr_debug.environments.musique.rows import (
    RELATIONS,
    Hop,
    MuSiQueRow,
    Paragraph,
    synthetic_musique,
)
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_jsonl, read_yaml, sha256, write_jsonl
from rlvr_debug.study.params import load_params
from tests.in_process import script
from tests.study_file import changed, study_file

ROOT = Path(__file__).parents[1]
PARAMS = load_params(ROOT / "params.yaml")
MUSIQUE = {
    "source": "synthetic",
    "path": None,
    "rows": 60,
    "hops": {"1": 0.3, "2": 0.7},
    "paragraphs": 6,
    "same_relation": 0.5,
    "heldout": 15,
    "seed": 3,
}
GSM8K = {
    "source": "synthetic",
    "path": None,
    "rows": 60,
    "steps": {"1": 0.5, "2": 0.5},
    "heldout": 15,
    "seed": 3,
}
FILES = ["heldout.jsonl", "manifest.json", "train.jsonl"]


def row_of(identity: str, question: str, components: Sequence[str] = ()) -> MuSiQueRow:
    return MuSiQueRow(
        id=identity,
        paragraphs=(Paragraph(0, "title", "text", True),),
        question=question,
        question_decomposition=tuple(Hop(c, "hop?", "answer", 0) for c in components),
        answer="answer",
        answer_aliases=(),
        answerable=True,
    )


def ids(rows: Sequence[Row]) -> list[str]:
    return [row.id for row in rows]


def keys(row: Row) -> set[tuple[str, str]]:
    question = re.sub(r"\s+", " ", row.question.strip()).casefold()
    return {("question", question), *(("component", c) for c in row.components)}


def groups(rows: Sequence[Row]) -> list[tuple[set[tuple[str, str]], set[str]]]:
    """The slow way: merge until nothing merges."""
    found: list[tuple[set[tuple[str, str]], set[str]]] = []
    for row in rows:
        merged = (keys(row), {row.id})
        for group in [g for g in found if g[0] & merged[0]]:
            found.remove(group)
            merged = (merged[0] | group[0], merged[1] | group[1])
        found.append(merged)
    return found


# Few questions, in several spellings, and few components: most rows share something
questions = st.builds(
    lambda word, number, gap, end: f"{word}{gap}{number}{end}",
    st.sampled_from(["straße", "STRASSE", "Who", "who"]),
    st.integers(0, 12),
    st.sampled_from([" ", "  ", "\t", "\u00a0"]),
    st.sampled_from(["", " ", "\n"]),
)
row_lists = st.lists(
    st.tuples(questions, st.lists(st.sampled_from("abcdefghijklmnop"), max_size=2)), max_size=25
).map(lambda found: [row_of(f"id{i}", q, c) for i, (q, c) in enumerate(found)])


# --- splits


def attempt(rows: Sequence[Row], heldout: int, seed: int) -> Splits | str:
    """The splits, or what the error says."""
    try:
        return split(rows, heldout, seed)
    except InputError as error:
        return str(error)


@given(row_lists, st.integers(0, 25), st.integers())
def test_no_question_and_no_component_is_in_both_splits(
    rows: list[Row], heldout: int, seed: int
) -> None:
    members = [identities for _, identities in groups(rows)]
    splits = attempt(rows, heldout, seed)
    if isinstance(splits, Splits):
        assert 1 <= len(splits.heldout) <= heldout
        assert sorted(ids(splits.train + splits.heldout)) == sorted(ids(rows))
        held = set(ids(splits.heldout))
        assert all(group <= held or not group & held for group in members)
    elif "held-out split is empty" in splits:
        assert all(len(group) > heldout for group in members)
    else:
        assert "train split is empty" in splits
        assert len(rows) <= heldout


@given(row_lists, st.integers(1, 10), st.integers(), st.randoms(use_true_random=False))
def test_splits_do_not_depend_on_the_order_in_the_file(
    rows: list[Row], heldout: int, seed: int, rng: Random
) -> None:
    shuffled = rng.sample(rows, len(rows))
    assert attempt(shuffled, heldout, seed) == attempt(rows, heldout, seed)


@given(st.integers(2, 40), st.data())
def test_exactly_as_many_are_held_out_as_asked_where_rows_share_nothing(
    count: int, data: st.DataObject
) -> None:
    heldout = data.draw(st.integers(1, count - 1))
    rows = [row_of(f"id{i}", f"question {i}") for i in range(count)]
    assert len(split(rows, heldout, seed=0).heldout) == heldout


def test_a_group_that_does_not_fit_is_passed_over_for_one_that_does() -> None:
    rows = [row_of(f"big{i}", "same") for i in range(5)] + [row_of("small", "other")]
    for seed in range(10):
        assert ids(split(rows, 4, seed).heldout) == ["small"]


def test_the_first_rows_of_a_split_are_not_all_of_one_hop_count() -> None:
    # ids begin with the number of hops: in the order of ids a trainer would see an easy prefix
    rows = list(synthetic_musique(200, hops={1: 1, 2: 1}, paragraphs=6, same_relation=0, seed=0))
    splits = split(rows, 60, seed=0)
    assert {row.hops for row in splits.train[:20]} == {1, 2}
    assert {row.hops for row in splits.heldout[:20]} == {1, 2}


@pytest.mark.parametrize(
    ("rows", "heldout", "said"),
    [
        ([], 3, ["held-out split is empty", "heldout is 3", "of 0 rows", "raise heldout"]),
        (["q"] * 8, 3, ["held-out split is empty", "of 8 rows in 1 groups", "raise heldout"]),
        (["q", "r"], 0, ["held-out split is empty", "heldout is 0", "of 2 rows", "raise heldout"]),
        (["q"] * 8, 8, ["train split is empty", "of 8 rows in 1 groups", "lower heldout"]),
        (["q", "r"], 9, ["train split is empty", "heldout is 9", "of 2 rows", "lower heldout"]),
    ],
)
def test_an_empty_split_is_an_error_that_says_what_to_change(
    rows: list[str], heldout: int, said: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        split([row_of(f"id{i}", q) for i, q in enumerate(rows)], heldout, seed=0)
    assert all(part in str(caught.value) for part in said)
    assert "\n" not in str(caught.value)


@given(row_lists, row_lists)
def test_separate_drops_from_train_exactly_what_is_in_a_group_with_heldout(
    train: list[Row], heldout: list[Row]
) -> None:
    heldout = [row_of(f"held {r.id}", r.question, r.components) for r in heldout]
    taken = {i for _, g in groups([*train, *heldout]) if g & set(ids(heldout)) for i in g}
    expected = [row for row in train if row.id not in taken]
    if not expected:
        with pytest.raises(InputError, match=f"train split is empty: each of its {len(train)} row"):
            separate(train, heldout)
    else:
        assert separate(train, heldout) == Splits(tuple(expected), tuple(heldout))


# --- reading


def musique_value(identity: str = "a") -> dict[str, Any]:
    return {
        "id": identity,
        "paragraphs": [
            {"idx": 0, "title": "Ada", "paragraph_text": "Born in Rome.", "is_supporting": True},
            {"idx": 1, "title": "Ben", "paragraph_text": "Born in Oslo.", "is_supporting": False},
        ],
        "question": f"Where was {identity} born?",
        "question_decomposition": [
            {"id": 7, "question": "Ada >> born", "answer": "Rome", "paragraph_support_idx": 0}
        ],
        "answer": "Rome",
        "answer_aliases": ["Roma"],
        "answerable": True,
    }


def changed_row(path: Sequence[str | int], value: Any) -> bytes:
    """A good row, its field at `path` replaced, or left out where `value` is None."""
    row: Any = musique_value("b")
    place = row
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(row).encode()


BAD = read_yaml(Path(__file__).with_name("bad_rows.yaml"))
TOO_LONG = {
    "nested too deep": (b"[" * 100_000, "one JSON object"),
    "number too long": (b'{"id": ' + b"1" * 5000 + b"}", "one JSON object"),
    "not UTF-8": (b'{"id": "\xff"}', "expected UTF-8"),
}
BAD_LINES = TOO_LONG | {
    **{name: (line.encode(), said) for name, (line, said) in BAD["lines"].items()},
    "half a character": (changed_row(["paragraphs", 0, "title"], "\ud800"), "title' has a lone"),
    "half an alias": (
        changed_row(["answer_aliases"], ["\ud800"]),
        "'answer_aliases.0' has a lone",
    ),
    **{name: (changed_row(*change), said) for name, (*change, said) in BAD["musique"].items()},
}


@pytest.mark.parametrize("heldout_path", [False, True])
@pytest.mark.parametrize(("line", "said"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_bad_row_is_an_error_that_names_file_line_and_key_and_writes_nothing(
    line: bytes, said: str, heldout_path: bool, tmp_path: Path
) -> None:
    bad, good, out = tmp_path / "bad.jsonl", tmp_path / "good.jsonl", tmp_path / "out"
    bad.write_bytes(json.dumps(musique_value("a")).encode() + b"\n\n" + line + b"\n")
    good.write_text(json.dumps(musique_value("c")))
    settings = {**MUSIQUE, "source": "jsonl", "path": str(bad)}
    if heldout_path:
        settings |= {"path": str(good), "heldout_path": str(bad)}
    with pytest.raises(InputError) as caught:
        prepare("musique", settings, out)
    assert str(caught.value).startswith(f"{bad}:3: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(("row", "said"), BAD["gsm8k"])
def test_a_bad_gsm8k_row_is_an_error_that_names_file_line_and_key(
    row: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n' + json.dumps(row))
    with pytest.raises(InputError) as caught:
        read_rows("gsm8k", path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_rows_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"empty\.jsonl: no rows"):
        read_rows("gsm8k", path)


@pytest.mark.parametrize("key", ["path", "heldout_path"])
def test_a_missing_file_is_an_error_that_names_it(key: str, tmp_path: Path) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text(json.dumps(musique_value()))
    settings = {**MUSIQUE, "source": "jsonl", "path": str(good), key: str(tmp_path / "none.jsonl")}
    with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
        prepare("musique", settings, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_path_that_no_file_can_have_is_an_error(name: str) -> None:
    with pytest.raises(InputError, match="expected a JSONL file"):
        read_rows("gsm8k", Path(name))


def test_a_hop_that_names_no_paragraph_is_read_as_one_without(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(
        changed_row(["question_decomposition", 0, "paragraph_support_idx"], None)
    )
    [row] = read_rows("musique", tmp_path / "rows.jsonl")
    assert isinstance(row, MuSiQueRow)
    assert [hop.paragraph_support_idx for hop in row.question_decomposition] == [None]


def test_an_error_shows_the_beginning_of_an_id_however_long(tmp_path: Path) -> None:
    row = json.dumps({"id": "x" * 100_000 + "\0", "question": "1+1?", "answer": "#### 2"})
    (tmp_path / "rows.jsonl").write_text(f"{row}\n{row}\n")
    with pytest.raises(InputError, match=r"x{9}.*expected each id once") as caught:
        read_rows("gsm8k", tmp_path / "rows.jsonl")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("tail", ["#", " ####", "x" * 50_000 + "#"])
def test_a_long_answer_is_refused_as_fast_as_a_short_one(tail: str) -> None:
    row = {"id": "1", "question": "1+1?", "answer": "#### " + "1" * 100_000 + tail}
    start = time.process_time()
    with pytest.raises(InputError, match="'#### number'"):
        GSM8KRow.parse(row, "here:1")
    assert time.process_time() - start < 1


@pytest.mark.parametrize("source", [None, "csv", ["jsonl"], "x" * 1000])
def test_an_unknown_source_is_an_error(source: Any, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^data\.musique: source is .*, expected synthetic, jsonl"
    ):
        prepare("musique", MUSIQUE | {"source": source}, tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "key"),
    [
        *(("jsonl", "path"), ("hub", "datasets"), ("synthetic", "hops"), ("synthetic", "rows")),
        *(("jsonl", "heldout"), ("hub", "heldout"), ("synthetic", "heldout"), ("jsonl", "seed")),
    ],
)
def test_a_setting_that_only_one_source_needs_is_missed(
    source: str, key: str, tmp_path: Path
) -> None:
    every = {**MUSIQUE, "path": "rows.jsonl", "datasets": "a/b,,train"}
    settings = {name: value for name, value in every.items() if name != key}
    with pytest.raises(InputError, match=f"^data.musique: source {source} needs '{key}'"):
        prepare("musique", settings | {"source": source}, tmp_path / "out")


# --- writing


def test_rows_are_written_without_holding_their_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    tracemalloc.start()
    try:
        write_jsonl(path, ({"text": "x" * 1_000_000} for _ in range(50)))
        found = sha256(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 50_000_000
    assert peak < 10_000_000
    assert found == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_row_that_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"old": 1}])
    with pytest.raises(UnicodeEncodeError):
        write_jsonl(path, [{"new": 1}, {"half a character": "\ud800"}])
    assert path.read_text() == '{"old": 1}\n'
    assert list(tmp_path.iterdir()) == [path]


# --- preparing


@pytest.mark.parametrize(("environment", "settings"), [("musique", MUSIQUE), ("gsm8k", GSM8K)])
def test_the_same_settings_in_any_order_give_the_same_bytes(
    environment: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    shares = "hops" if environment == "musique" else "steps"
    backwards = dict(reversed(list(settings.items())))
    backwards[shares] = dict(reversed(list(settings[shares].items())))
    prepare(environment, settings, tmp_path / "a")
    prepare(environment, backwards, tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == FILES
    for name in FILES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(("environment", "settings"), [("musique", MUSIQUE), ("gsm8k", GSM8K)])
def test_the_manifest_tells_what_the_files_hold(
    environment: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    prepare(environment, settings, tmp_path)
    manifest = read_json(tmp_path / "manifest.json")
    total = 0
    for name in ("train", "heldout"):
        rows = read_rows(environment, tmp_path / f"{name}.jsonl")
        hops = Counter(str(row.hops) for row in rows)
        file_hash = sha256(tmp_path / f"{name}.jsonl")
        assert manifest.pop(name) == {
            "rows": len(rows),
            "rows_by_hops": dict(hops),
            "sha256": file_hash,
        }
        assert len(hops) == 2
        total += len(rows)
    assert total == settings["rows"]
    assert manifest == {
        "environment": environment,
        "source": "synthetic",
        "seed": 3,
        "dropped_from_train": 0,
    }


def test_rows_of_train_that_share_with_a_heldout_file_are_dropped_and_counted(
    tmp_path: Path,
) -> None:
    train, heldout = tmp_path / "train.jsonl", tmp_path / "heldout.jsonl"
    shares_question = {"question": " where  is IT?", "answer": "#### 1"}
    train.write_text(
        "\n".join(
            json.dumps(row)
            for row in (shares_question, {"question": "Who?", "answer": "#### 2"}, shares_question)
        )
    )
    heldout.write_text('{"question": "Where is it?", "answer": "#### 3"}')
    settings = {**GSM8K, "source": "jsonl", "path": str(train), "heldout_path": str(heldout)}
    prepare("gsm8k", settings, tmp_path / "out")
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert manifest["dropped_from_train"] == 2
    assert (manifest["train"]["rows"], manifest["heldout"]["rows"]) == (1, 1)
    assert read_rows("gsm8k", tmp_path / "out" / "train.jsonl")[0].question == "Who?"


@pytest.mark.parametrize("bad", ["row", "jobs"])
def test_the_script_ends_bad_input_with_one_line_and_writes_nothing(
    bad: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n{"question": "2+2?"')
    study = study_file(
        tmp_path, changed(PARAMS, data={"gsm8k": {"source": "jsonl", "path": str(path)}})
    )
    jobs = study.with_name("jobs.json")
    if bad == "jobs":
        jobs.write_text(jobs.read_text()[:-3])
    arguments = ["--environment", "gsm8k", "--study", str(study), "--out", str(tmp_path / "out")]
    done = script("scripts/prepare_data.py", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {f'{path}:2' if bad == 'row' else jobs}: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- real rows


@pytest.mark.parametrize(
    ("environment", "count"),
    [("musique", 120), ("gsm8k", 500)],
)
def test_no_real_row_is_lost_or_altered(
    environment: str, count: int, real: Path, tmp_path: Path
) -> None:
    path = real / environment / "rows.jsonl"
    settings = {"source": "jsonl", "path": str(path), "heldout": count // 4, "seed": 0}
    prepare(environment, settings, tmp_path)
    splits = [read_rows(environment, tmp_path / f"{s}.jsonl") for s in ("train", "heldout")]
    assert len(splits[1]) == count // 4
    held = {key for row in splits[1] for key in keys(row)}
    assert not any(keys(row) & held for row in splits[0])

    official = {value.get("id", f"gsm8k-{line}"): value for line, value in read_jsonl(path)}
    prepared = {row.id: json.loads(json.dumps(row.to_json())) for row in splits[0] + splits[1]}
    assert len(prepared) == count
    for identity, value in official.items():
        value.setdefault("id", identity)  # the official GSM8K rows have none
    assert prepared == official


# --- synthetic rows


shares = st.dictionaries(st.integers(1, 4), st.floats(0.1, 1), min_size=1)
musique_rows = st.builds(
    lambda hops, extra, same_relation, seed: list(
        synthetic_musique(
            5,
            hops=hops,
            paragraphs=max(hops) + 2 + extra,
            same_relation=same_relation,
            seed=seed,
        )
    ),
    shares,
    st.integers(0, 15),
    st.floats(0, 1),
    st.integers(),
)
gsm8k_rows = st.builds(
    lambda steps, seed: list(synthetic_gsm8k(5, steps=steps, seed=seed)),
    st.dictionaries(st.integers(1, 2), st.floats(0.1, 1), min_size=1),
    st.integers(),
)


def facts(paragraph: Paragraph) -> dict[str, str]:
    """relation -> value, however the sentence is put."""
    pattern = rf"\b({'|'.join(RELATIONS)}) (?:is )?(\w+)"
    found = re.findall(pattern, paragraph.paragraph_text)
    assert len(found) == len(dict(found)) == 3
    return dict(found)


@given(musique_rows)
def test_the_synthetic_answer_is_reached_hop_by_hop_over_the_supporting_paragraphs(
    rows: list[MuSiQueRow],
) -> None:
    for row in rows:
        asked = re.fullmatch(r"Who is the (.+) of (\w+)\?", row.question)
        assert asked
        relations = asked[1].split(" of the ")[::-1]
        entity, visited = asked[2], []
        by_title = {p.title: p for p in row.paragraphs}
        assert len(by_title) == len(row.paragraphs)
        for hop, relation in zip(row.question_decomposition, relations, strict=True):
            paragraph = by_title[entity]
            visited.append(paragraph.idx)
            entity = facts(paragraph)[relation]
            assert (hop.answer, hop.paragraph_support_idx) == (entity, paragraph.idx)
        assert entity == row.answer
        assert sorted(visited) == sorted(row.supporting)
        assert entity not in by_title


@given(st.one_of(musique_rows, gsm8k_rows))
def test_synthetic_rows_pass_the_parser(rows: list[Row]) -> None:
    for row in rows:
        assert type(row).parse(json.loads(json.dumps(row.to_json())), "here:1") == row


@given(gsm8k_rows)
def test_synthetic_gsm8k_steps_are_right_and_lead_from_the_question_to_the_answer(
    rows: list[GSM8KRow],
) -> None:
    for row in rows:
        numbers = [int(n) for n in re.findall(r"\d+", row.question)]
        steps = re.findall(r"<<(\d+)\*(\d+)=(\d+)>>(\d+) ", row.answer)
        assert len(steps) == row.hops == len(numbers) - 1
        so_far = numbers[0]
        for factor, (a, b, product, shown) in zip(numbers[1:], steps, strict=True):
            assert (int(a), int(b)) == (so_far, factor)
            so_far *= factor
            assert int(product) == int(shown) == so_far
        assert row.final == str(so_far)
        assert so_far < 100


def musique_settings(**settings: Any) -> dict[str, Any]:
    return {"hops": {1: 0.3, 2: 0.7}, "paragraphs": 8, "same_relation": 0.5, "seed": 0, **settings}


def test_the_same_seed_gives_the_same_rows_and_more_rows_begin_with_them() -> None:
    few, more = (list(synthetic_musique(n, **musique_settings())) for n in (10, 20))
    assert more[:10] == few
    assert list(synthetic_musique(10, **musique_settings(hops={2: 0.7, 1: 0.3}))) == few
    few_steps, more_steps = (
        list(synthetic_gsm8k(n, steps={1: 0.5, 2: 0.5}, seed=0)) for n in (10, 20)
    )
    assert more_steps[:10] == few_steps


def test_a_synthetic_question_cannot_be_answered_from_memory() -> None:
    answers = defaultdict(list)
    for row in synthetic_musique(3000, **musique_settings(hops={1: 1}, paragraphs=3)):
        answers[row.question].append(row.answer)
    repeated = [found for found in answers.values() if len(found) > 1]
    right = sum(max(Counter(found).values()) - 1 for found in repeated)
    assert len(repeated) > 500
    assert right / sum(len(found) - 1 for found in repeated) < 0.1


def shared_keys(some: Sequence[Row], others: Sequence[Row]) -> set[tuple[str, str]]:
    return {key for row in some for key in keys(row)} & {key for row in others for key in keys(row)}


@given(st.integers(0, 80), st.integers(0, 80), st.integers(), shares)
def test_reserved_synthetic_rows_are_the_last_and_share_nothing_with_the_others(
    count: int, heldout: int, seed: int, hops: dict[int, float]
) -> None:
    settings = musique_settings(hops=hops, seed=seed, heldout=heldout)
    rows = list(synthetic_musique(count, **settings))
    assert len(rows) == count
    first_reserved = max(0, count - heldout)
    assert not shared_keys(rows[:first_reserved], rows[first_reserved:])


@pytest.mark.parametrize("heldout", [256])
def test_twenty_thousand_synthetic_rows_share_so_much_and_can_be_split_all_the_same(
    heldout: int,
) -> None:
    settings = musique_settings(hops={2: 0.7, 3: 0.2, 4: 0.1}, paragraphs=6, heldout=heldout)
    rows = list(synthetic_musique(20_000, **settings))
    assert not shared_keys(rows[:-heldout], rows[-heldout:])
    splits = split(rows, heldout, seed=0)
    assert (len(splits.heldout), len(splits.train)) == (heldout, 20_000 - heldout)
    assert not shared_keys(splits.train, splits.heldout)


def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    """Whatever order a process gives to the members of a set."""
    for hash_seed in ("1", "2"):
        settings = {"rows": 500, "heldout": 50}
        study = study_file(tmp_path, changed(PARAMS, data={"musique": settings}))
        arguments = ["--environment", "musique", "--study", str(study)]
        subprocess.run(
            [sys.executable, "scripts/prepare_data.py", *arguments, "--out", tmp_path / hash_seed],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
        )
    for name in FILES:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_synthetic_rows_are_made_one_at_a_time() -> None:
    endless = synthetic_musique(10**12, **musique_settings())
    assert [row.id.rsplit("_", 1)[1] for row in islice(endless, 3)] == ["0", "1", "2"]
    steps = synthetic_gsm8k(10**12, steps={1: 1}, seed=0)
    assert next(steps).id == "gsm8k-synthetic-0"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hops": {6: 1}}, "hops is {6: 1}"),
        ({"hops": {0: 1}}, "hops is {0: 1}"),
        ({"hops": {}}, "hops is {}"),
        ({"hops": {2: 0}}, "not all 0"),
        ({"hops": {4: 1}, "paragraphs": 5}, "paragraphs is 5, expected 6"),
        ({"paragraphs": 120}, "paragraphs is 120, expected 4 to 119"),
    ],
)
def test_settings_that_no_synthetic_row_can_have_are_an_error(
    settings: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        list(synthetic_musique(1, **musique_settings(**settings)))
