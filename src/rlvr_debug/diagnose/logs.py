"""A run's log as the checks read it: one table of steps, and one of completions where there is one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlvr_debug.diagnose.names import completion_names, names_of, part_of, quantities, resolve
from rlvr_debug.diagnose.readers import EXPECTED, Rows, read_rows
from rlvr_debug.errors import InputError

__all__ = ["Array", "Log", "logged_as", "make_log", "read_log"]

Array = NDArray[np.float64]
_MOST_FILES = 5_000
# no quantity is larger: it is read as infinity, so that sums of squares do not overflow
_HUGE = 1e100
_TABLES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".json", ".gz")
# of a folder's files, the first of these that is there holds the steps
_STEPS = ("trainer_state.json", "metrics.jsonl", "wandb-history.jsonl", "history.jsonl")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# numbers in a table of completions that are no part of the reward
_NOT_SCORES = {"index", "id", "row_id", "epoch", "seed", "length", "num_tokens", "group", "rank"}


@dataclass(frozen=True)
class Log:
    """steps: a row per step by index, a column per quantity (names.yaml), NaN where nothing was logged.

    parts, part_stds: means and standard deviations of parts of the reward, same index. completions: columns
    step, prompt, completion, and where known reward, advantage and `part/<name>`. nonfinite: by quantity, how
    often it was logged as NaN or infinity. sources: by quantity, the column that it was read from.
    """

    place: str
    kind: str
    steps: pd.DataFrame
    parts: pd.DataFrame
    part_stds: pd.DataFrame
    completions: pd.DataFrame
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def series(self, quantity: str) -> Array:
        """Its finite values in order of steps; empty where it was not logged."""
        if quantity not in self.steps:
            return np.array([])
        values: Array = self.steps[quantity].to_numpy(dtype=np.float64)
        return values[np.isfinite(values)]

    def has(self, *names: str) -> bool:
        """Whether all of these can be read: quantities, or `completions`, `completions.reward` and so on."""
        return all(self._has(name) for name in names)

    def _has(self, name: str) -> bool:
        table, _, column = name.partition(".")
        if table == "completions":
            return len(self.completions) > 0 and (not column or column in self.completions)
        if name == "parts":
            return self.parts.shape[1] > 1
        return self.series(name).size > 0 or self.nonfinite.get(name, 0) > 0


def read_log(path: Path) -> Log:
    """Of a file, or of a folder that holds one run. Raises InputError for what is not a log."""
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False
    if not is_folder:
        return make_log(str(path), [read_rows(path)])
    found = [read_rows(file) for file in _files(path)]
    return make_log(str(path), found)


def _files(folder: Path) -> list[Path]:
    """The file of steps, if there is one, and those of completions."""
    try:
        names = sorted(folder.iterdir())[:_MOST_FILES]
        inner = folder / "completions"
        tables = sorted(inner.iterdir())[:_MOST_FILES] if inner.is_dir() else []
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}, {EXPECTED}") from None
    tables += [name for name in names if name.name.startswith("completions") and name.is_file()]
    tables = [name for name in tables if name.suffix.lower() in _TABLES]
    steps = [folder / name for name in _STEPS if (folder / name).is_file()]
    checkpoints = [
        (int(match[1]), name / "trainer_state.json")
        for name in names
        if (match := _CHECKPOINT.fullmatch(name.name)) and (name / "trainer_state.json").is_file()
    ]
    if not steps and checkpoints:
        steps = [max(checkpoints)[1]]
    if not steps:
        others = [
            name
            for name in names
            if name.suffix.lower() in _TABLES and name.is_file() and name not in tables
        ]
        if len(others) > 1:
            listed = ", ".join(name.name for name in others[:4])
            raise InputError(
                f"{folder}: found {len(others)} files that may be the log ({listed}), expected one, or its path"
            )
        steps = others
    if not steps and not tables:
        raise InputError(f"{folder}: found no log in this folder, {EXPECTED}")
    return [*steps[:1], *tables]


def make_log(place: str, found: Sequence[Rows]) -> Log:
    """Of the rows of one or several files: those with a prompt and a completion are completions."""
    completions = [rows for rows in found if _is_completions(rows.rows)]
    steps = [row for rows in found if not _is_completions(rows.rows) for row in rows.rows]
    table, parts, stds, nonfinite, sources, unknown, notes = _steps(steps)
    shown = _completions([row for rows in completions for row in rows.rows])
    if not sources and not parts.shape[1] and shown.empty:
        names = ", ".join(unknown[:5]) or "none"
        raise InputError(
            f"{place}: found no quantity that is known (names: {names[:200]}), expected columns such as "
            "reward, kl or grad_norm; docs/diagnose.md lists all"
        )
    if shown.empty and list(sources) == ["step"] and not parts.shape[1]:
        raise InputError(f"{place}: found steps and nothing else, expected columns such as reward")
    said = [note for rows in found for note in rows.notes]
    kinds = list(dict.fromkeys(rows.kind for rows in found))
    return Log(
        place,
        " and ".join(kinds),
        table,
        parts,
        stds,
        shown,
        nonfinite,
        sources,
        tuple(unknown),
        tuple(dict.fromkeys([*said, *notes])),
    )


def _number(value: Any) -> float | None:
    """None where nothing, or no number, was logged."""
    if isinstance(value, bool):
        return None
    try:
        if isinstance(value, (int, float)) or (isinstance(value, str) and value.strip()):
            found = float(value)
            return math.copysign(math.inf, found) if abs(found) > _HUGE else found
    except OverflowError:
        return math.inf
    except ValueError:
        pass
    return None


def _steps(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[
    pd.DataFrame, pd.DataFrame, pd.DataFrame, dict[str, int], dict[str, str], list[str], list[str]
]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numbers = {name: [_number(row.get(name)) for row in rows] for name in columns}
    numbers = {n: v for n, v in numbers.items() if any(each is not None for each in v)}
    chosen: dict[str, tuple[int, str]] = {}
    parts: dict[str, dict[str, str]] = {"mean": {}, "std": {}}
    unknown = []
    for name in numbers:
        known, part = resolve(name), part_of(name)
        if known:
            quantity, rank = known
            if quantity not in chosen or rank < chosen[quantity][0]:
                chosen[quantity] = (rank, name)
        elif part:
            parts[part[1]][part[0]] = name
        else:
            unknown.append(name)
    order, notes = _order(numbers, chosen)
    sources = {q: chosen[q][1] for q in quantities() if q in chosen}
    nonfinite: dict[str, int] = {}
    data: dict[str, Array] = {}
    for quantity, name in sources.items():
        values = np.array([math.nan if v is None else v for v in numbers[name]], dtype=np.float64)
        logged = np.array([v is not None for v in numbers[name]])
        if bad := int((logged & ~np.isfinite(values)).sum()):
            nonfinite[quantity] = bad
        data[quantity] = np.where(np.isfinite(values), values, math.nan)

    def table(names: Mapping[str, str]) -> pd.DataFrame:
        found = {
            key: pd.to_numeric(pd.Series(numbers[name], dtype="object"), errors="coerce")
            for key, name in sorted(names.items())
        }
        frame = pd.DataFrame(found, index=range(len(rows))).replace([math.inf, -math.inf], math.nan)
        return _by_step(frame, order)

    frame = pd.DataFrame(data, index=range(len(rows)))
    if "step" in frame:
        frame = frame.drop(columns="step")
    return (
        _by_step(frame, order),
        table(parts["mean"]),
        table(parts["std"]),
        nonfinite,
        sources,
        sorted(unknown),
        notes,
    )


def _order(
    numbers: Mapping[str, Sequence[float | None]], chosen: Mapping[str, tuple[int, str]]
) -> tuple[Array, list[str]]:
    """Of every row, its step; NaN for a row to be left out."""
    if "step" not in chosen:
        size = max((len(v) for v in numbers.values()), default=0)
        note = "no step is logged: rows are taken in their order"
        return np.arange(1, size + 1, dtype=np.float64), [note] if size else []
    steps = np.array(
        [math.nan if v is None else v for v in numbers[chosen["step"][1]]], dtype=np.float64
    )
    steps = np.where(np.isfinite(steps), steps, math.nan)
    without = int(np.isnan(steps).sum())
    notes = [f"{without} rows without a step were left out"] if without else []
    known = steps[~np.isnan(steps)]
    if (np.diff(known) < 0).any():
        notes.append("rows were not in the order of steps, and were sorted")
    return steps, notes


def _by_step(frame: pd.DataFrame, order: Array) -> pd.DataFrame:
    """One row per step, in order; of several values the last one that was logged."""
    if frame.empty:
        return pd.DataFrame(frame, dtype=float)
    kept = frame[~np.isnan(order)].astype(float)
    grouped = kept.groupby(order[~np.isnan(order)], sort=True).last()
    return grouped.dropna(axis="index", how="all")


def _is_completions(rows: Sequence[Mapping[str, Any]]) -> bool:
    names = completion_names()
    return bool(rows) and all(
        any(name in rows[0] and not isinstance(rows[0][name], (int, float)) for name in names[key])
        for key in ("prompt", "completion")
    )


def _completions(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Parts of the reward are the numeric columns that are nothing else; without a reward, their sum."""
    if not rows:
        return pd.DataFrame()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    named = {
        key: next((name for name in names if name in columns), None)
        for key, names in completion_names().items()
    }
    found: dict[str, list[Any]] = {}
    for key, name in named.items():
        if name is not None and key in ("prompt", "completion"):
            found[key] = [_text(row.get(name)) for row in rows]
        elif name is not None:
            values = [_number(row.get(name)) for row in rows]
            if any(v is not None for v in values):
                found[key] = [math.nan if v is None else v for v in values]
    taken = {name for name in named.values() if name} | _NOT_SCORES
    for name in columns:
        values = [_number(row.get(name)) for row in rows]
        if name not in taken and all(v is not None for v in values):
            found[f"part/{name}"] = values
    frame = pd.DataFrame(found)
    numeric = frame.select_dtypes("number").columns
    frame[numeric] = frame[numeric].replace([math.inf, -math.inf], math.nan)
    parts = [str(name) for name in frame if str(name).startswith("part/")]
    if "reward" not in frame and parts:
        frame["reward"] = frame[parts].sum(axis=1)
    if "step" not in frame:
        frame["step"] = 0.0
    return frame


def _text(value: Any) -> str:
    """A conversation as one text: equal texts are equal conversations."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def logged_as(quantity: str, framework: str = "trl") -> str:
    """What a user would log it as: the framework's name, else another's."""
    table, _, column = quantity.partition(".")
    if table == "completions":
        return f"completions with their {column or 'prompts'}"
    if quantity == "parts":
        return "rewards/<part>/mean of every part"
    names = names_of(quantity)
    return next((n for key in (framework, *names) for n in names.get(key, ())), quantity)
