"""What shows a finding: the curves that its check reads with the rows that it looks at, and rollouts. Data for a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlvr_debug.causes.check import Check, Passage, first_rows
from rlvr_debug.causes.texts import messages
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.logs.log import Array, Log

_MOST_PARTS = 4
_MOST_ROLLOUTS = 4


@dataclass(frozen=True)
class Mark:
    """The rows of a curve that a check looks at. first, last: their steps; value: the height of the line; says: in words."""

    first: float
    last: float
    value: float
    says: str


@dataclass(frozen=True)
class Curve:
    """What was logged of a quantity. name: the log's own; steps, values: [rows], finite; mark: None where nothing is."""

    name: str
    steps: Array
    values: Array
    mark: Mark | None


@dataclass(frozen=True)
class Said:
    """A rollout of the log. turns: who speaks, and what is said: pieces, each with whether it shows the finding.

    reward, advantage: None where not logged. shows: whether the check names it; else it was logged nearest to the place.
    """

    step: float
    reward: float | None
    advantage: float | None
    turns: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...]
    shows: bool


@dataclass(frozen=True)
class Evidence:
    """A finding, with its curves and rollouts."""

    finding: Finding
    curves: tuple[Curve, ...]
    rollouts: tuple[Said, ...]


def evidence(finding: Finding, log: Log) -> Evidence:
    """Return what of the log shows a finding."""
    curves = tuple(_curves(finding.check, log))
    if named := finding.shown.rollouts:
        rollouts = tuple(_said(log, passage, True) for passage in named[:_MOST_ROLLOUTS])
        return Evidence(finding, curves, rollouts)
    step = next((each.mark.first for each in curves if each.mark), None)
    return Evidence(finding, curves, _rollouts_at(log, step))


def rows_of(finding: Finding, log: Log) -> str:
    """Return the rows that a finding's numbers come from, in words."""
    marked = [(each.name, each.mark) for each in _curves(finding.check, log) if each.mark]
    if not marked:
        steps = log.completions["step"].unique() if len(log.completions) else ()
        return f"{len(log.completions)} completions of {len(steps)} step{'s'[: len(steps) != 1]}"
    names = ", ".join(name for name, _ in marked)
    first, last = marked[0][1].first, marked[0][1].last
    return f"{names}, " + (f"step {first:g}" if first == last else f"steps {first:g} to {last:g}")


def _curves(check: Check, log: Log) -> list[Curve]:
    """Return those of what the check reads."""
    read = next((names for names in check.needs if log.has(*names)), ())
    known = [name for name in read if name in log.steps]
    found = [curve(log, name, check.at) for name in known]
    if "parts" in read:
        parts = list(log.parts)[:_MOST_PARTS]
        found += [_drawn(f"rewards/{name}/mean", log.parts[name], check.at) for name in parts]
    return [each for each in found if each.values.size]


def curve(log: Log, quantity: str, at: str = "") -> Curve:
    """Return the curve of a quantity that the log has. at: the rows to mark (Check.at), none without."""
    return _drawn(log.sources.get(quantity, quantity), log.steps[quantity], at)


def _drawn(name: str, column: pd.Series, at: str) -> Curve:
    known = column.dropna()
    steps = known.index.to_numpy(dtype=np.float64)
    values = known.to_numpy(dtype=np.float64)
    return Curve(name, steps, values, _mark(steps, values, at) if at and values.size else None)


def _mark(steps: Array, values: Array, at: str) -> Mark:
    third = max(1, values.size // 3)
    if at == "largest":
        place = int(values.argmax())
        step, value = float(steps[place]), float(values[place])
        return Mark(step, step, value, f"largest, {value:.3g}, at step {step:g}")
    if at == "start":
        count = first_rows(values.size)
        value, last = float(values[:count].mean()), float(steps[count - 1])
        rows = "first row" if count == 1 else f"first {count} rows"
        return Mark(float(steps[0]), last, value, f"{rows}: {value:.3g}")
    if at == "end":
        value, first = float(np.median(values[-third:])), float(np.median(values[:third]))
        said = (
            f"last third from step {steps[-third]:g}: median {value:.3g}, first third {first:.3g}"
        )
        return Mark(float(steps[-third]), float(steps[-1]), value, said)
    value = float(np.median(values))
    return Mark(float(steps[0]), float(steps[-1]), value, f"all rows: median {value:.3g}")


def _rollouts_at(log: Log, step: float | None) -> tuple[Said, ...]:
    """Return the rollouts with the least and the most reward of those that were logged nearest to a step."""
    table = log.completions
    if table.empty:
        return ()
    known = np.unique(table["step"].dropna().to_numpy(dtype=np.float64))
    if step is not None and known.size:
        near = known[np.abs(known - step).argmin()]
        table = table[table["step"] == near]
    labels = table.index.to_numpy().tolist()
    if "reward" in table and table["reward"].notna().any():
        rewards = table["reward"].to_numpy(dtype=np.float64)
        rows = [labels[int(np.nanargmin(rewards))], labels[int(np.nanargmax(rewards))]]
    else:
        rows = labels[:2]
    return tuple(_said(log, Passage(row), False) for row in dict.fromkeys(rows))


def _said(log: Log, passage: Passage, shows: bool) -> Said:
    row = log.completions.loc[passage.row]
    told = [*_turns(row["prompt"], "prompt"), *_turns(row["completion"], "completion")]
    place = None if passage.turn is None else passage.turn % len(told)
    turns = tuple(
        (who, ((text, True),) if n == place else _pieces(text, passage.text))
        for n, (who, text) in enumerate(told)
    )
    reward, advantage = (_number(row.get(name)) for name in ("reward", "advantage"))
    return Said(_number(row["step"]) or 0.0, reward, advantage, turns, shows)


def _pieces(text: str, marked: str) -> tuple[tuple[str, bool], ...]:
    """Return the text in pieces, the one that is marked apart."""
    if not marked or marked not in text:
        return ((text, False),)
    before, _, after = text.partition(marked)
    return ((before, False), (marked, True), (after, False))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, float | int) and np.isfinite(value) else None


def _turns(text: object, who: str) -> Sequence[tuple[str, str]]:
    """Return a conversation's messages, or a text as it stands."""
    told = messages(text)
    if told is None:
        return [(who, str(text))]
    found = []
    for message in told:
        said, calls = str(message.get("content") or ""), message.get("tool_calls")
        text = f"{said}\n{json.dumps(calls, ensure_ascii=False)}".strip() if calls else said
        found.append((f"{who}, {message.get('role', '')}", text))
    return found
