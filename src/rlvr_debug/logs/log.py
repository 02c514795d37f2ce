"""A run's log as the checks read it: one table of steps, and one of completions where there is one."""

import json
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.logs.names import (
    KNOWN,
    NAMES,
    ROUNDED,
    argument_name,
    argument_value,
    dotted,
    framework_of,
    part_of,
    resolve,
)
from rlvr_debug.logs.readers import read_rows
from rlvr_debug.logs.structured import EXPECTED, Rows, rank_of

Array = NDArray[np.float64]
_MOST_FILES = 5_000
_MOST_SETTINGS = 1 << 20  # bytes
_INPUT = "standard input"
# no quantity is larger: it is read as infinity, so that sums of squares do not overflow
_HUGE = 1e100
# of the reward's range: what is logged is rounded
_ADDS_UP = 0.01
# where a run keeps its logs
_PLACES: dict[str, list[str]] = read_yaml(Path(__file__).with_name("places.yaml"))
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Log:
    """steps: a row per step by index, a column per quantity (names.yaml), NaN where nothing was logged.

    parts, part_stds: means and deviations of parts of the reward. completions: step, prompt, completion, and where known
    reward, advantage and `part/<name>`. own_reward: their reward was logged, and is no sum of parts. nonfinite: by quantity,
    how often it was NaN or infinity, and bad_steps: where. rounded: quantities printed as 0.000. sources: by quantity, its
    column. settings: by their framework's names. ends: how its console ends, a sentence; pace: its bar's seconds per step.
    """

    place: str
    kind: str
    completions: pd.DataFrame
    own_reward: bool = False
    rounded: tuple[str, ...] = ()
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    parts: pd.DataFrame = field(default_factory=pd.DataFrame)
    part_stds: pd.DataFrame = field(default_factory=pd.DataFrame)
    nonfinite: Mapping[str, int] = field(default_factory=dict)
    bad_steps: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    ends: str = ""
    pace: float | None = None

    @cached_property
    def framework(self) -> str:
        """The one that calls most of its columns so."""
        return framework_of(self.sources)

    def series(self, quantity: str) -> Array:
        """Its finite values in order of steps; empty where it was not logged."""
        if quantity not in self.steps:
            return np.array([])
        values: Array = self.steps[quantity].to_numpy(dtype=np.float64)
        return values[np.isfinite(values)]

    def steps_of(self, quantity: str) -> Array:
        column = self.steps[quantity]
        found: Array = column.index[np.isfinite(column)].to_numpy(dtype=np.float64)
        return found

    def together(self, *quantities: str) -> Array:
        """Return the rows in which all of these are finite, [rows, quantities]; none where one was not logged."""
        if not set(quantities) <= set(self.steps):
            return np.empty((0, len(quantities)))
        found: Array = self.steps[list(quantities)].dropna().to_numpy(dtype=np.float64)
        return found

    def largest_at(self, quantity: str) -> int:
        """Return the step of its largest finite value. Raise ValueError where there is none."""
        found = self.steps[quantity].dropna()
        return int(found.index.to_numpy()[found.to_numpy().argmax()])

    def argument(self, name: str) -> float | None:
        """Return a setting that is a number, by TRL's name; None where it is not known or no number."""
        value = _number(argument_value(self.settings, name, self.framework))
        return value if math.isfinite(value) else None

    def has(self, *names: str) -> bool:
        """Whether all of these can be read: quantities, `completions`, `completions.reward` and so on, or `argument.beta`."""
        return all(self._has(*name.partition(".")[::2]) for name in names)

    def _has(self, name: str, column: str) -> bool:
        if name == "argument":
            return self.argument(column) is not None
        if name == "completions":
            return len(self.completions) > 0 and (not column or column in self.completions)
        if name in ("parts", "part_stds"):
            return len(getattr(self, name).columns) > 1
        return self.series(name).size > 0 or self.nonfinite.get(name, 0) > 0


def read_log(path: Path, run: str = "") -> Log:
    """Return the log of a file, of a folder of one run, or of standard input, `-`. run: which one of a chart of several."""
    place = _INPUT if str(path) == "-" else str(path)
    place += f" --run {shlex.quote(run)}" if run else ""
    if str(path) == "-":
        with tempfile.NamedTemporaryFile() as kept:
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.flush()
            try:
                return make_log(place, [read_rows(Path(kept.name), run)])
            except InputError as error:
                raise InputError(str(error).replace(kept.name, _INPUT)) from None
    files = _files(path) if os.path.isdir(path) else [path]
    log = make_log(place, [read_rows(file, run) for file in files])
    return replace(log, settings={**_settings(path), **log.settings})


def _settings(path: Path) -> dict[str, Any]:
    """Return the settings beside a log by their dotted names, none where no file holds any."""
    folder = path if path.is_dir() else path.parent
    for file in (folder / name for name in _PLACES["settings"]):
        try:
            if file != path and file.is_file() and file.stat().st_size <= _MOST_SETTINGS:
                return dict(dotted(read_yaml(file)))
        except (InputError, OSError, ValueError, RecursionError):
            continue
    return {}


def _files(folder: Path) -> list[Path]:
    """The file of steps, if there is one, and those of completions."""
    try:
        names = sorted(folder.iterdir())[:_MOST_FILES]
        inner = folder / "completions"
        tables = sorted(inner.iterdir())[:_MOST_FILES] if inner.is_dir() else []
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror or error}, {EXPECTED}") from None
    files = [name for name in names if name.suffix.lower() in _PLACES["tables"] and name.is_file()]
    tables = [name for name in tables if name.suffix.lower() in _PLACES["tables"]]
    tables += [name for name in files if name.name.startswith("completions")]
    steps = [folder / name for name in _PLACES["steps"] if (folder / name).is_file()]
    checkpoints = {
        int(match[1]): name / "trainer_state.json"
        for name in names
        if (match := _CHECKPOINT.fullmatch(name.name)) and (name / "trainer_state.json").is_file()
    }
    if not steps and checkpoints:
        steps = [checkpoints[max(checkpoints)]]
    if not steps and (own := _own_files(folder)):
        return [*own, *tables]
    if not steps:
        steps = [name for name in files if name not in tables] or _printed(names)
        if len(steps) > 1:
            steps = list(dict.fromkeys([*_printed(names), *steps]))
            listed = ", ".join(name.name for name in steps[:4])
            raise InputError(
                f"{folder}: found {len(steps)} files that may be the log ({listed}{', …' * (len(steps) > 4)}), expected one: "
                f"type rlvr-debug diagnose {steps[0]}"
            )
    if not steps and not tables:
        runs = [name for name in names if any((name / one).is_file() for one in _PLACES["steps"])]
        if runs:
            raise InputError(
                f"{folder}: found {len(runs)} runs, expected the path of one, such as {runs[0]}"
            )
        raise InputError(f"{folder}: found no log in this folder, {EXPECTED}")
    return [*steps[:1], *tables]


def _printed(names: Sequence[Path]) -> list[Path]:
    """Return the files of console output: of several ranks' the first rank's, which is the one with rows of metrics."""
    found = [name for name in names if name.suffix.lower() in _PLACES["printed"] and name.is_file()]
    found = [name for name in found if name.stem.lower() != "readme"]
    by_name = [name for name in found if "rank" in name.stem.lower()]
    return [min(found, key=rank_of)] if found and len(by_name) == len(found) else found


def _own_files(folder: Path) -> list[Path]:
    """Return the files that a logger wrote, all of one folder. Raise InputError where several folders have some."""
    for pattern in _PLACES["loggers"]:
        found = sorted(folder.glob(pattern))[:_MOST_FILES]
        places = sorted({path.parent for path in found})
        if len(places) > 1:
            listed = ", ".join(str(place.relative_to(folder)) for place in places[:4])
            raise InputError(
                f"{folder}: found the logs of {len(places)} runs ({listed}), expected the path of one"
            )
        if found:
            return found
    return []


def make_log(place: str, found: Sequence[Rows]) -> Log:
    """Of the rows of one or several files: those with a prompt and a completion are completions."""
    completions: list[Mapping[str, Any]] = []
    steps: list[Mapping[str, Any]] = []
    for each in found:
        (completions if _is_completions(each.rows) else steps).extend(each.rows)
    kinds = dict.fromkeys(each.kind for each in found)
    notes = tuple(note for each in found for note in each.notes)
    table = _completions(completions)
    own_reward = "reward" in table
    parts = [name for name in table if str(name).startswith("part/")]
    if parts and not own_reward:
        table = table.assign(reward=table[parts].sum(axis="columns"))
    settings = {name: value for each in found for name, value in each.settings.items()}
    ended = next((each for each in found if each.ends or each.pace), Rows("", ()))
    known = Log(place, " and ".join(kinds), table, own_reward, notes=notes, settings=settings)
    log = _of_steps(replace(known, ends=ended.ends, pace=ended.pace), steps)
    if table.empty and not log.parts.shape[1] and not set(log.sources) - {"step"}:
        names = ", ".join([*log.sources.values(), *log.unknown][:5]) or "none"
        raise InputError(
            f"{place}: found no known metric (names: {names[:200]}), expected columns such as "
            "reward, kl or grad_norm: rename yours (docs/checks.md lists all)"
        )
    return log


def _number(value: Any) -> float:
    """NaN where nothing, or no number, was logged; infinity for what was logged and is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or value == "":
        return math.nan
    try:
        found = float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan
    return found if abs(found) <= _HUGE else math.inf


def _numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """By column, its number in every row, of columns with at least one."""
    columns = dict.fromkeys(name for row in rows for name in row)
    found = {name: np.array([_number(row.get(name)) for row in rows]) for name in columns}
    return {name: values for name, values in found.items() if not np.isnan(values).all()}


def _finite(values: Array) -> Array:
    return np.where(np.isinf(values), math.nan, values)


def _of_steps(log: Log, rows: Sequence[Mapping[str, Any]]) -> Log:
    """Return the log with what these rows say, a quantity by the column that names.yaml prefers."""
    numbers = _numbers(rows)
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
    sources = {q: chosen[q][1] for q in NAMES if q in chosen}
    if "reward" in sources and not parts["mean"]:
        own = _adding_up(numbers, unknown, numbers[sources["reward"]])
        parts["mean"] = {name: name for name in own}
        unknown = [name for name in unknown if name not in own]
    order, notes = _order(numbers, sources)
    infinite = {q: order[np.isinf(numbers[name])] for q, name in sources.items()}
    bad = {q: steps for q, steps in infinite.items() if steps.size}

    def table(names: Mapping[str, str]) -> pd.DataFrame:
        found = {key: _finite(numbers[name]) for key, name in names.items()}
        return _by_step(pd.DataFrame(found, index=range(len(rows))), order)

    rounded = {n: None for row in rows for n, value in row.items() if value == ROUNDED}
    notes += [
        f"{name} is printed as 0.000: read the logger's own file for more digits"
        for name in rounded
    ]
    return replace(
        log,
        rounded=tuple(known[0] for name in rounded if (known := resolve(name))),
        steps=table({q: name for q, name in sources.items() if q != "step"}),
        parts=table(dict(sorted(parts["mean"].items()))),
        part_stds=table(dict(sorted(parts["std"].items()))),
        nonfinite={q: steps.size for q, steps in bad.items()},
        bad_steps={q: tuple(steps[~np.isnan(steps)].tolist()) for q, steps in bad.items()},
        sources=sources,
        unknown=tuple(sorted(unknown)),
        notes=tuple(dict.fromkeys([*log.notes, *notes])),
    )


def _adding_up(numbers: Mapping[str, Array], names: Sequence[str], reward: Array) -> list[str]:
    """Return the columns whose weighted sum is the reward, row by row: its parts, by names of their own."""
    rows = np.isfinite(reward)
    if not rows.any():
        return []
    names = [n for n in names if np.isfinite(numbers[n][rows]).all() and np.ptp(numbers[n][rows])]
    if not 2 <= len(names) <= rows.sum() // 4:
        return []
    columns = np.stack([numbers[name][rows] for name in names], axis=1)
    weights = np.linalg.lstsq(columns, reward[rows], rcond=None)[0]
    kept = np.abs(weights) * np.ptp(columns, axis=0) > _ADDS_UP * np.ptp(reward[rows])
    left = reward[rows] - columns[:, kept] @ weights[kept]
    adds_up = np.abs(left).max() <= _ADDS_UP * np.ptp(reward[rows]) and (weights[kept] > 0).all()
    return [name for name, used in zip(names, kept, strict=True) if used] if adds_up else []


def _order(numbers: Mapping[str, Array], sources: Mapping[str, str]) -> tuple[Array, list[str]]:
    """Of every row, its step; NaN for a row to be left out."""
    if "step" not in sources:
        size = max(map(len, numbers.values()), default=0)
        note = "no step is logged: rows count as steps, in their order"
        return np.arange(1, size + 1, dtype=np.float64), [note] if size else []
    steps = _finite(numbers[sources["step"]])
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
    names = KNOWN["completions"]
    return bool(rows) and all(
        any(name in rows[0] and not isinstance(rows[0][name], (int, float)) for name in names[key])
        for key in ("prompt", "completion")
    )


def _completions(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Parts of the reward are the numeric columns that are nothing else."""
    if not rows:
        return pd.DataFrame()
    columns = {name for row in rows for name in row}
    numbers = _numbers(rows)
    found: dict[str, Any] = {"step": 0.0}
    taken = {*_PLACES["no scores"]}
    for key, names in KNOWN["completions"].items():
        name = next((each for each in names if each in columns), "")
        taken.add(name)
        if name and key in ("prompt", "completion"):
            found[key] = [_text(row.get(name)) for row in rows]
        elif name in numbers:
            found[key] = _finite(numbers[name])
    for name, values in numbers.items():
        if name not in taken and not np.isnan(values).any():
            found[f"part/{name}"] = _finite(values)
    return pd.DataFrame(found, index=range(len(rows)))


def _text(value: Any) -> str:
    """A conversation as one text: equal texts are equal conversations."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def logged_as(quantity: str, framework: str = "trl") -> str:
    """What a user of this framework would log it as; where it has no name for it, TRL's, else another's."""
    table, _, column = quantity.partition(".")
    if table == "completions":
        return f"completions with their {column or 'prompts'}"
    if table == "argument":
        return f"the setting {argument_name(column, framework)}"
    if quantity in ("parts", "part_stds"):
        return f"rewards/<part>/{'mean' if quantity == 'parts' else 'std'} of every part"
    names = NAMES[quantity]
    return next((n for key in (framework, "trl", *names) for n in names.get(key, ())), quantity)
