"""Rows of a file that is nothing but a table: JSON, JSONL, CSV or parquet. Numbers stay as they were logged, NaN and infinity too."""

import contextlib
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError, hint, short
from rlvr_debug.logs.console import MOST_ROWS, NUMBER
from rlvr_debug.logs.names import is_known

EXPECTED = (
    "expected trainer_state.json, a logger's own file, a trainer's console output, or a log or table of completions as "
    "JSONL, CSV or parquet"
)
# endings of names of files that hold one table
TABLES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_MOST_COLUMNS = 5_000
_MOST_CELL = 4 * 1024 * 1024
_DEPTH = 6
_BROKEN = "the file is cut off or broken after row {}"
_TRIED = 12  # ends of rows, from the last one back
_CUT_OFF = "line {}, the last one, is cut off and was left out"
# under these keys some loggers nest a row's numbers
_NESTED = ("data", "metrics", "logs", "scalars", "stats")
_LISTS = ("log_history", "history", "rows", "records", "data")
_JSON = re.compile(r"[{\[]\s*([{\[\]}\"]|$)")
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_EXTREMES = re.compile(r"__(MIN|MAX)$")
_NUMBER = re.compile(rf"\s*{NUMBER}\s*")
_RUN_COLUMN = re.compile(r"(?P<run>.+?) - (?P<name>[^ ].*)")
# a row per value, as MLflow and TensorBoard's data frames have it: columns of its name and of the run; a chart of TensorBoard
_NAMED = ("key", "tag", "metric")
_RUN = ("run", "run_id", "run_uuid")
_TAG = re.compile(r".*-tag-(.+)\.csv")
_SHOWN = re.compile(r"-?[\d.]+(?:,\d+)*(?:\.\d+)?(?:[eE][-+]?\d+)?%?|nan|NaN")


@dataclass(frozen=True)
class Rows:
    """kind: as what the file was read; notes: what was left out; settings: of the run, where the file has them. run: which
    one of several these are of, if one was asked for. ends, pace: how its console ends (printed.py).
    """

    kind: str
    rows: Sequence[Mapping[str, Any]]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    ends: str = ""
    pace: float | None = None


def rank_of(path: Path) -> int:
    """Return the rank in a log file's name, 0 if it names none."""
    match = _RANK.search(path.stem)
    return int(match[1]) if match else 0


def is_structured(path: Path, first: str) -> bool:
    """Return whether a file is to be read as one table, by its name and its first line that is not blank."""
    suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
    by_name = suffix.lower()
    if first[0] in "{[":
        return _JSON.match(first) is not None
    names = next(csv.reader([first], delimiter=max(",;\t", key=first.count)), [])
    known = (is_known(_RUN_COLUMN.sub(r"\g<name>", name)) for name in names)
    return by_name in TABLES or (len(names) > 1 and any(known))


def structured_rows(path: Path, text: str, run: str = "") -> Rows:
    """JSON and JSONL begin with a bracket; anything else is CSV. run: which one is read of a chart of several runs."""
    begin = text.lstrip()[0]
    if begin not in "{[":
        return _csv(path, text, run)
    lines = [line for line in text.splitlines() if line.strip()]
    if begin == "{" and len(lines) > 1 and lines[0].rstrip().endswith("}"):
        return _jsonl(path, text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if begin == "{" and len(lines) > 1 and lines[0].strip() != "{":
            return _jsonl(path, text)
        # of a run that was killed while it wrote, the whole rows; what follows these in a trainer_state.json has braces too
        for end in [brace.end() for brace in re.finditer("}", text)][: -_TRIED - 1 : -1]:
            with contextlib.suppress(ValueError, RecursionError):
                whole = _json(path, json.loads(text[:end] + ("]" if begin == "[" else "]}")))
                return Rows(whole.kind, whole.rows, (_BROKEN.format(len(whole.rows)),))
        place = f"{path}:{getattr(error, 'lineno', 1)}"
        found = getattr(error, "msg", "values nested too deep or a number too long")
        raise InputError(f"{place}: expected JSON, found: {found}") from None
    return _json(path, value)


def _json(path: Path, value: Any) -> Rows:
    kind = "JSON"
    if isinstance(value, dict):
        key = next((key for key in _LISTS if isinstance(value.get(key), list)), None)
        if key:
            kind = "trainer_state.json" if key == "log_history" else kind
            value = value[key]
        elif any(isinstance(each, (int, float)) for each in value.values()):
            value = [value]
        else:
            raise InputError(
                f"{path}: found a JSON object without log_history or rows of numbers, {EXPECTED}"
            )
    for number, row in enumerate(value, start=1):
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: row {number} is {type(row).__name__}, expected an object of names and numbers"
            )
    return Rows(kind, [flat(row, path, number) for number, row in enumerate(value, start=1)])


def _jsonl(path: Path, text: str) -> Rows:
    rows: list[dict[str, Any]] = []
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    for number, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == lines[-1][0] and rows:  # of a run that was killed while it wrote
                return Rows("JSONL", rows, (_CUT_OFF.format(number),))
            found = getattr(error, "msg", "values nested too deep or a number too long")
            raise InputError(
                f"{path}:{number}: expected one JSON object a line, found: {found}"
            ) from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        rows.append(flat(row, path, number))
    return Rows("JSONL", rows)


def flat(row: Mapping[str, Any], path: Path, number: int) -> dict[str, Any]:
    """Nested objects as `outer/inner`; what a logger nests all of a row under is lifted."""
    flat: dict[str, Any] = {}
    below: list[tuple[str, Mapping[str, Any], int]] = [("", row, 0)]
    while below:
        prefix, value, depth = below.pop()
        for key, item in value.items():
            name = f"{prefix}{key}"
            if isinstance(item, Mapping) and depth < _DEPTH:
                inner = prefix if not depth and key in _NESTED else f"{name}/"
                below.append((inner, item, depth + 1))
            else:
                flat.setdefault(name, item)
    if len(flat) > _MOST_COLUMNS:
        raise InputError(
            f"{path}:{number}: found {len(flat)} columns, expected at most {_MOST_COLUMNS}"
        )
    return flat


def _csv(path: Path, text: str, run: str) -> Rows:
    csv.field_size_limit(_MOST_CELL)
    first = text.lstrip().splitlines()[0]
    delimiter = max(",;\t|", key=first.count)
    if delimiter not in first:
        raise InputError(
            f"{path}:1: found {short(first)}, expected a header of several columns; {EXPECTED}"
        )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(reader.line_num, each) for each in reader if any(cell.strip() for cell in each)]
    except csv.Error as error:
        raise InputError(f"{path}: expected CSV, found: {error}") from None
    if not lines:
        raise InputError(f"{path}: found no header, {EXPECTED}")
    [(_, header), *body] = lines
    own = next((n for n, name in enumerate(header) if name.strip().lower() in _RUN), len(header))
    runs = {values[own] for _, values in body if len(values) > own} - {""}
    names, notes = _header(path, [name.strip() for name in header], run, runs)
    rows: list[dict[str, Any]] = []
    for number, values in body:
        if len(values) != len(header):
            if number == body[-1][0] and len(values) < len(header) and rows:
                notes.append(_CUT_OFF.format(number))
                break
            raise InputError(
                f"{path}:{number}: found {len(values)} values, expected {len(header)} as in the header"
            )
        if run and runs and values[own] != run:
            continue
        rows.append({n: value for n, value in zip(names, values, strict=True) if n is not None})
    if len(rows) > MOST_ROWS:
        raise InputError(f"{path}: expected at most {MOST_ROWS} rows, found more")
    # numbers first: rows of a step each may lack what others have
    rows = _by_value(path, _as_numbers(rows)) if rows else rows
    return Rows("CSV", rows, tuple(notes), run=run)


def _by_value(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per step, of a table with a row per value: its name stands beside it or, of TensorBoard's, in the file's."""
    columns = {name.lower(): name for name in rows[0]}
    named = next((columns[n] for n in _NAMED if n in columns), "")
    tag = _TAG.fullmatch(path.name)
    if not {"step", "value"} <= columns.keys() or not (named or tag):
        return rows
    # in a file's name, `_` stands for `/`
    tags = [tag[1].replace("_", "/", count) for count in range(9)] if tag else [""]
    one = next((each for each in tags if is_known(each)), tags[0])
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        step, name = row[columns["step"]], row.get(named, one)
        found.setdefault(step, {"step": step})[name] = row[columns["value"]]
    return list(found.values())


def _as_numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with 45.2%, 1,234.5 and 0,31 as Python has them. A comma is decimal where no point is."""
    if not any(_SHOWN.fullmatch(v) for row in rows for v in row.values() if "," in v or "%" in v):
        return rows
    columns = [n for n in rows[0] if all(not r[n] or _SHOWN.fullmatch(r[n]) for r in rows)]
    found = [row[name] for row in rows for name in columns]
    point = "" if any("." in v or v.count(",") > 1 for v in found) else "."
    for row, name in product(rows, columns):
        text = row[name].replace(",", point)
        row[name] = float(text[:-1]) / 100 if text.endswith("%") else text
    return rows


def _header(
    path: Path, names: Sequence[str], run: str, runs: set[str]
) -> tuple[list[str | None], list[str]]:
    """Names of columns; None for one that is left out: the bands of a chart of Weights & Biases, and its other runs. runs: of rows."""
    kept: list[str | None] = [None if _EXTREMES.search(name) else name for name in names]
    runs = runs | {m["run"] for name in kept if name and (m := _RUN_COLUMN.fullmatch(name))}
    if run and run not in runs:
        raise InputError(f"{path}:1: found no run '{run}', {hint(run, sorted(runs))}")
    if len(runs) > 1 and not run:
        listed = ", ".join(short(run) for run in sorted(runs)[:3])
        raise InputError(
            f"{path}:1: found {len(runs)} runs ({listed}), expected one run's export, or --run NAME"
        )
    for place, name in enumerate(kept):
        if match := name and _RUN_COLUMN.fullmatch(name):
            kept[place] = None if run and match["run"] != run else match["name"]
    if all(not name or _NUMBER.fullmatch(name) for name in names):
        raise InputError(f"{path}:1: found numbers, expected a header of names")
    for place, name in enumerate(kept):
        if name and name in kept[:place]:
            raise InputError(f"{path}:1: column {short(name)} appears twice, expected once")
    notes = ["a column without a name was left out"] if "" in names else []
    return [name or None for name in kept], notes
