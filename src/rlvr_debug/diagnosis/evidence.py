"""What shows a finding: the curves that its check reads with the rows that it looks at, and rollouts. Data for a page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlvr_debug.causes.check import Passage, Steps, first_rows
from rlvr_debug.causes.readings import messages
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.logs.log import Array, Log

_MOST_PARTS = 4
_MOST_ROLLOUTS = 4


@dataclass(frozen=True)
class Mark:
    """The rows of a curve that a check speaks of. spans: their steps, what is marked last; value: the height of the line."""

    spans: tuple[Steps, ...]
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
    """A rollout. turns: who speaks, and pieces of text, each with whether it shows the finding. shows: the check names the rollout."""

    step: float
    reward: float | None
    advantage: float | None
    turns: tuple[tuple[str, tuple[tuple[str, bool], ...]], ...]
    shows: bool


def evidence(finding: Finding, log: Log) -> tuple[list[Curve], tuple[Said, ...]]:
    """Return the curves and the rollouts of the log that show a finding."""
    curves = _curves(finding, log)
    if named := finding.shown.rollouts:
        return curves, tuple(_said(log, passage, True) for passage in named[:_MOST_ROLLOUTS])
    step = next((each.mark.spans[-1][0] for each in curves if each.mark), None)
    return curves, _rollouts_at(log, step)


def rows_of(finding: Finding, log: Log) -> str:
    """Return the rows that a finding's numbers come from, in words."""
    curves, spoken = _curves(finding, log), finding.shown.steps
    if not curves and spoken:
        return f"{', '.join(log.sources[n] for n in finding.shown.of)}, {_in_words(spoken)}"
    if finding.check.of_settings:
        return "its settings"
    if not curves or not curves[0].mark:
        steps = log.completions["step"].unique() if len(log.completions) else ()
        return f"{len(log.completions)} completions of {len(steps)} step{'s'[: len(steps) != 1]}"
    return f"{', '.join(each.name for each in curves)}, {_in_words(curves[0].mark.spans)}"


def _in_words(spans: tuple[Steps, ...]) -> str:
    said = " and ".join(f"{a:g}" if a == b else f"{a:g} to {b:g}" for a, b in spans)
    return f"step{'s'[: ' ' in said]} {said}"


def _curves(finding: Finding, log: Log) -> list[Curve]:
    check, spoken = finding.check, finding.shown.steps
    read = finding.shown.of or next((names for names in check.needs if log.has(*names)), ())
    columns = {log.sources.get(n, n): log.steps[n] for n in read if n in log.steps}
    if "parts" in read:
        columns |= {f"rewards/{n}/mean": log.parts[n] for n in list(log.parts)[:_MOST_PARTS]}
    found = (_drawn(name, column, check.at, spoken) for name, column in columns.items())
    return [each for each in found if each.values.size]


def curve(log: Log, quantity: str, at: str = "") -> Curve:
    """Return the curve of a logged quantity. at: the rows to mark (Check.at), if any."""
    return _drawn(log.sources.get(quantity, quantity), log.steps[quantity], at)


def _drawn(name: str, column: pd.Series, at: str, spoken: tuple[Steps, ...] = ()) -> Curve:
    known = column.dropna()
    steps = known.index.to_numpy(dtype=np.float64)
    values = known.to_numpy(dtype=np.float64)
    if not at or not values.size:
        return Curve(name, steps, values, None)
    third, largest = max(1, values.size // 3), int(values.argmax())
    rows = {
        "largest": [slice(largest, largest + 1)],
        "start": [slice(first_rows(values.size))],
        "end": [slice(-third, None)],
        "ends": [slice(third), slice(-third, None)],
        "run": [slice(None)],
    }
    spans = spoken or tuple((float(steps[r][0]), float(steps[r][-1])) for r in rows[at])
    inside = [(first <= steps) & (steps <= last) for first, last in spans]
    medians = [float(np.median(values[each])) for each in inside if each.any()]
    said = f"{_in_words(spans)}: median {' and '.join(f'{each:.3g}' for each in medians)}"
    return Curve(name, steps, values, Mark(spans, medians[-1] if medians else np.nan, said))


def _rollouts_at(log: Log, step: float | None) -> tuple[Said, ...]:
    """Return the rollouts with the least and the most reward of those that were logged nearest to a step."""
    table = log.completions
    if table.empty:
        return ()
    known = np.unique(table["step"].dropna().to_numpy(dtype=np.float64))
    if step is not None and known.size:
        near = known[np.abs(known - step).argmin()]
        table = table[table["step"] == near]
    rows = table.index[:2].tolist()
    if "reward" in table and table["reward"].notna().any():
        rows = [table["reward"].idxmin(), table["reward"].idxmax()]
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
