"""Rows of a file that is nothing but a table: JSON, JSONL, CSV or parquet.

A row is a mapping from column to number or text; numbers stay as they were logged, NaN and infinity too.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError, hint, short
from rlvr_debug.logs.names import is_known

EXPECTED = (
    "expected trainer_state.json, a logger's own file, a trainer's console output, or a log or table of completions as "
    "JSONL, CSV or parquet"
)
# endings of names of files that hold one table
TABLES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_MOST_ROWS = 1_000_000
_MOST_COLUMNS = 5_000
_MOST_CELL = 4 * 1024 * 1024
_DEPTH = 6
# under these keys some loggers nest a row's numbers
_NESTED = ("data", "metrics", "logs", "scalars")
_LISTS = ("log_history", "history", "rows", "records", "data")
_JSON = re.compile(r"[{\[]\s*([{\[\]}\"]|$)")
_RANK = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)
_EXTREMES = re.compile(r"__(MIN|MAX)$")
_RUN_COLUMN = re.compile(r"(?P<run>.+?) - (?P<name>[^ ].*)")


@dataclass(frozen=True)
class Rows:
    """kind: as what the file was read; notes: what was left out, in words; settings: of the run, where the file has them."""

    kind: str
    rows: Sequence[Mapping[str, Any]]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def rank_of(path: Path) -> int:
    """Return the rank whose output a file is by its name, 0 where it names none."""
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


def parquet_rows(path: Path, data: bytes) -> Rows:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise InputError(
            f"{path}: found parquet, expected the package pyarrow, which reads it: "
            "pip install 'rlvr-debug[parquet]'"
        ) from None
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        if file.metadata.num_rows > _MOST_ROWS:
            raise InputError(f"{path}: found more than {_MOST_ROWS} rows, expected fewer")
        rows = file.read().to_pylist()
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: expected parquet, found: {short(str(error))}") from None
    return Rows("parquet", [flat(row, path, number) for number, row in enumerate(rows, 1)])


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
        elif value and all(isinstance(each, list) for each in value.values()):
            value = _of_columns(path, value)
        elif any(isinstance(each, (int, float)) for each in value.values()):
            value = [value]
        else:
            raise InputError(
                f"{path}: found a JSON object without log_history or rows of numbers, {EXPECTED}"
            )
    rows = []
    for number, row in enumerate(value, start=1):
        if not isinstance(row, dict):
            raise InputError(
                f"{path}: row {number} is {type(row).__name__}, expected an object of names and numbers"
            )
        rows.append(flat(row, path, number))
    return Rows(kind, rows)


def _of_columns(path: Path, columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    sizes = {len(values) for values in columns.values()}
    if len(sizes) > 1:
        raise InputError(
            f"{path}: found columns of {min(sizes)} to {max(sizes)} values, expected equal lengths"
        )
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _jsonl(path: Path, text: str) -> Rows:
    rows: list[dict[str, Any]] = []
    notes = []
    lines = text.splitlines()
    last = max(number for number, line in enumerate(lines, 1) if line.strip())
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == last and rows:  # of a run that was killed while it wrote
                notes.append(f"line {number}, the last one, is cut off and was left out")
                break
            found = getattr(error, "msg", "values nested too deep or a number too long")
            raise InputError(
                f"{path}:{number}: expected one JSON object a line, found: {found}"
            ) from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        rows.append(flat(row, path, number))
    return Rows("JSONL", rows, tuple(notes))


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
            f"{path}:{number}: found {len(flat)} names, expected at most {_MOST_COLUMNS}"
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
    names, notes = _header(path, [name.strip() for name in header], run)
    rows: list[dict[str, Any]] = []
    for number, values in body:
        if len(values) != len(header):
            if number == body[-1][0] and len(values) < len(header) and rows:
                notes.append(f"line {number}, the last one, is cut off and was left out")
                break
            raise InputError(
                f"{path}:{number}: found {len(values)} values, expected {len(header)} as in the header"
            )
        pairs = zip(names, values, strict=True)
        rows.append({name: value for name, value in pairs if name is not None})
    if len(rows) > _MOST_ROWS:
        raise InputError(f"{path}: found more than {_MOST_ROWS} rows, expected fewer")
    return Rows("CSV", rows, tuple(notes))


def _header(path: Path, names: Sequence[str], run: str) -> tuple[list[str | None], list[str]]:
    """Names of columns; None for one that is left out: the bands of a chart of Weights & Biases, and its other runs."""
    kept: list[str | None] = [None if _EXTREMES.search(name) else name for name in names]
    runs = {m["run"] for name in kept if name and (m := _RUN_COLUMN.fullmatch(name))}
    if run and run not in runs:
        raise InputError(f"{path}:1: found no run '{run}', {hint(run, sorted(runs))}")
    if len(runs) > 1 and not run:
        listed = ", ".join(short(run) for run in sorted(runs)[:3])
        raise InputError(
            f"{path}:1: found columns of {len(runs)} runs ({listed}), expected one run's export, or --run NAME"
        )
    if runs:
        kept = [_of_run(name, run) for name in kept]
    notes = []
    if all(not name or _number_like(name) for name in names):
        raise InputError(f"{path}:1: found numbers, expected a header of names")
    for place, name in enumerate(kept):
        if name and name in kept[:place]:
            raise InputError(f"{path}:1: column {short(name)} stands twice, expected once")
    if "" in names:
        notes.append("a column without a name was left out")
    return [name or None for name in kept], notes


def _of_run(name: str | None, run: str) -> str | None:
    """Return a column's name without its run's; None for a column of another run than `run`."""
    match = name and _RUN_COLUMN.fullmatch(name)
    if not match:
        return name
    return None if run and match["run"] != run else match["name"]


def _number_like(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
