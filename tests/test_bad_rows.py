"""Rows gone wrong in every way we could think of: each is taken as it is or refused by its line."""

import copy
import functools
import json
import re
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.environments.calculator import CalculatorRow, synthetic_calculator
from rlvr_debug.environments.gsm8k import GSM8KRow
from rlvr_debug.environments.musique.rows import MuSiQueRow
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, write_jsonl

ENVIRONMENTS = ["musique", "gsm8k", "calculator"]
MUTANTS = 250  # of each environment
GOOD = 4  # rows beside each

HOLE = "a hole to fill with text that json.dumps would not write"
# values, as JSON text, that a field might hold instead of its own
TEXTS: list[str] = [
    *("null", "true", "false", "0", "-1", "7", "1.5", "1e999", "NaN", "Infinity", "-Infinity"),
    *('""', '" "', '"x"', '"#### 4"', '"4"', "[]", "{}", "[[]]", "[null]", '[""]', '["a", 1]'),
    *(r'"\ud800"', r'"a\udfffb"', r'"\u0000"', r'"\u2028"', r'"\n\r"', r'"\u001b[2J"', '"\ufeffx"'),
    *(r'"\ud83d\ude00"', '"٣"', '{"a": 1, "a": 2}', '["####", "#"]'),
    *("9" * 4000, "-" + "9" * 5000, "0." + "3" * 5000),
    *(json.dumps(text) for text in ("x" * 1_000_000, "# " * 50_000, "####" * 50_000)),
    json.dumps("#### " + "1" * 50_000 + "#"),  # slow for a pattern that tries every digit
    *(f"[{', '.join(['1'] * count)}]" for count in (50, 5000)),
    *("[" * depth + "]" * depth for depth in (5, 500, *range(900, 1000, 5), 100_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (5, 500, *range(900, 1000, 10))),
]


FIRST = ("first", "x" * 1_000_000, "\x1b[2J\0\u2028\n")  # ids of the first row of a file


# --- mutants


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or index) of a row."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from nodes(value[key])


def some_node(row: Any, rng: Random) -> tuple[Any, Any]:
    # level by level: of all nodes, nearly all are parts of paragraphs
    places = [(row, key) for key in row]
    while True:
        parent, key = rng.choice(places)
        if not isinstance(parent[key], dict | list) or not parent[key] or rng.random() < 0.3:
            return parent, key
        inner = parent[key]
        places = [(inner, k) for k in (inner if isinstance(inner, dict) else range(len(inner)))]


def replaced(row: Any, rng: Random) -> str:
    parent, key = some_node(row, rng)
    parent[key] = HOLE
    text: str = json.dumps(row)
    return text.replace(json.dumps(HOLE), rng.choice(TEXTS))


def exchanged(row: Any, rng: Random) -> str:
    places = list(nodes(row))
    (one, key), (other, other_key) = rng.choice(places), rng.choice(places)
    one[key] = copy.deepcopy(other[other_key])
    return json.dumps(row)


def left_out(row: Any, rng: Random) -> str:
    parent, key = some_node(row, rng)
    del parent[key]
    return json.dumps(row)


def renamed(row: Any, rng: Random) -> str:
    key = rng.choice(list(row))
    row[rng.choice([key.upper(), key + " ", "", "\ud800", "x" * 100_000])] = row.pop(key)
    return json.dumps(row)


def repeated(row: Any, rng: Random) -> str:
    lists = [parent[key] for parent, key in nodes(row) if isinstance(parent[key], list)]
    target = rng.choice([found for found in lists if found] or [[row["question"]]])
    target.extend(copy.deepcopy(target) * rng.choice([1, 200]))
    if rng.random() < 0.5 and "idx" in row.get("paragraphs", [{}])[0]:
        for idx, paragraph in enumerate(row["paragraphs"]):
            paragraph["idx"] = idx
    return json.dumps(row)


def key_twice(row: Any, rng: Random) -> str:
    key = rng.choice(list(row))
    return json.dumps(row)[:-1] + f", {json.dumps(key)}: {rng.choice(TEXTS)}}}"


def another_key(row: Any, rng: Random) -> str:
    return json.dumps(row)[:-1] + f', "another": {rng.choice(TEXTS)}}}'


def as_another(row: Any, rng: Random) -> str:
    """With the id of the first row of the file, perhaps."""
    row["id"] = rng.choice([*FIRST, "gsm8k-1", "gsm8k-2", f"{FIRST[0]}\n"])
    return json.dumps(row, ensure_ascii=rng.random() < 0.5)


def truncated(row: Any, rng: Random) -> str:
    text = json.dumps(row)
    return text[: rng.randrange(1, len(text))]


def garbled(row: Any, rng: Random) -> bytes:
    """Bytes put in, or over others, anywhere."""
    raw = json.dumps(row, ensure_ascii=False).encode()
    others = [b"\0", b"\r", b"\n", b"\x1a", b"\\", b'"', b",", b"{", b"}", rng.randbytes(1)]
    not_utf8 = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]
    bad = rng.choice([*others, *not_utf8, b"\xef\xbb\xbf", b"\xe2\x80\xa8"])
    at = rng.choice([0, len(raw), rng.randrange(len(raw))])
    return raw[:at] + bad + raw[at + rng.choice([0, len(bad)]) :]


def encoded(row: Any, rng: Random) -> bytes:
    encoding = rng.choice(["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp037"])
    return json.dumps(row).encode(encoding)


def not_a_row(row: Any, rng: Random) -> str:
    text = json.dumps(row)
    wrapped = [text + text, f"[{text}]", json.dumps(text), f"// {text}", f"{text},"]
    return rng.choice([*TEXTS, *wrapped, "\0", "\x0b"])


KINDS: list[Callable[[Any, Random], str | bytes]] = [
    *(replaced, replaced, replaced, exchanged, left_out, renamed, repeated, key_twice, another_key),
    *(as_another, truncated, garbled, encoded, not_a_row),
]


@functools.cache
def valid_rows(environment: str) -> list[dict[str, Any]]:
    """Real rows where the environment has some."""
    path = ROOT / "data" / "real" / environment / "rows.jsonl"
    if path.is_file():
        return [row for _, row in islice(read_jsonl(path), 100)]
    rows = synthetic_calculator(100, steps={1: 1, 2: 1}, seed=0)
    return [json.loads(json.dumps(row.to_json())) for row in rows]


def write_mutant(environment: str, number: int, path: Path) -> int:
    """Write good rows with one mutant among them, which may stand on more than one line.

    Returns how many lines hold anything.
    """
    rng = Random(f"{environment} {number}")
    *good, row = copy.deepcopy(rng.sample(valid_rows(environment), GOOD + 1))
    good[0]["id"] = rng.choice(FIRST)
    line = KINDS[number % len(KINDS)](row, rng)
    lines = [json.dumps(row).encode() for row in good]
    lines.insert(rng.randrange(GOOD + 1), line if isinstance(line, bytes) else line.encode())
    content = rng.choice([b"\n", b"\n", b"\r\n", b"\n\n"]).join(lines)
    path.write_bytes(content + rng.choice([b"", b"\n"]))
    return sum(bool(line.strip()) for line in content.split(b"\n"))


# --- what holds for whatever comes out


def refused_well(said: str, path: Path, origin: str = "") -> bool:
    """One short line that begins with the file and one of its lines."""
    pattern = rf"{origin}{re.escape(str(path))}:(\d+): [^\0-\x1f]+"
    found = re.fullmatch(pattern, said)
    lines = path.read_bytes().count(b"\n") + 1
    short_enough = len(said) < len(str(path)) * 2 + 300
    return bool(found and 1 <= int(found[1]) <= lines and short_enough and said.isprintable())


def whole(row: Row) -> bool:
    """What the rest of the project takes for granted of a row."""
    json.dumps(row.to_json(), ensure_ascii=False).encode()  # no half characters
    texts = [row.id, row.question, row.answer]
    if isinstance(row, GSM8KRow):
        assert re.search(r"\d", row.final)
        assert row.hops >= 1
    elif isinstance(row, CalculatorRow):
        Fraction(row.answer)
        assert row.hops == row.steps >= 1
    elif isinstance(row, MuSiQueRow):
        indices = [p.idx for p in row.paragraphs]
        texts += [p.paragraph_text for p in row.paragraphs]
        texts += [text for hop in row.question_decomposition for text in (hop.question, hop.answer)]
        assert all(type(index) is int for index in indices)
        assert len(set(indices)) == len(indices)
        assert row.supporting
        assert set(row.supporting) <= set(indices)
        supports = {hop.paragraph_support_idx for hop in row.question_decomposition}
        assert supports <= {None, *indices}
        assert row.hops >= 1
        assert all(isinstance(p.title, str) for p in row.paragraphs)
        assert all(isinstance(alias, str) for alias in row.answer_aliases)
        assert all(isinstance(hop.id, int | str) for hop in row.question_decomposition)
        flags = [row.answerable, *(p.is_supporting for p in row.paragraphs)]
        assert all(type(flag) is bool for flag in flags)
    return all(isinstance(text, str) and text.strip() for text in texts)


def known(value: Any, shape: Any) -> Any:
    """What of `value` the schema knows: the keys of `shape`."""
    if isinstance(shape, dict):
        return {key: known(value.get(key), part) for key, part in shape.items()}
    if isinstance(shape, list):
        return [known(*parts) for parts in zip(value, shape, strict=True)]
    return value


def faithful(row: Row, value: dict[str, Any]) -> bool:
    """Nothing that the schema knows is altered."""
    written = json.loads(json.dumps(row.to_json()))
    return bool(known({"id": row.id, **value}, written) == written)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_a_row_gone_wrong_is_taken_whole_or_refused_by_its_line(
    environment: str, tmp_path: Path
) -> None:
    path, again = tmp_path / "rows.jsonl", tmp_path / "again.jsonl"
    refused = 0
    for number in range(MUTANTS):
        lines = write_mutant(environment, number, path)
        said, rows = "", []
        start = time.process_time()
        try:
            rows = read_rows(environment, path)
        except InputError as error:
            said = str(error)
        except BaseException as error:
            error.add_note(f"{environment} {number}")
            raise
        assert time.process_time() - start < 2, number
        if said:
            assert refused_well(said, path), (number, said[:500])
            refused += 1
            continue
        assert len(rows) == lines, number
        assert all(map(whole, rows)), number
        values = [value for _, value in read_jsonl(path)]
        assert all(map(faithful, rows, values)), number
        write_jsonl(again, (row.to_json() for row in rows))
        assert read_rows(environment, again) == rows, number
    # neither way is left untried
    assert MUTANTS * 0.4 < refused < MUTANTS * 0.9
