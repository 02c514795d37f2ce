"""Two logs beside each other: what is found in one alone, and which quantities part, the first in time first."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.diagnosis.rank import Diagnosis
from rlvr_debug.diagnosis.report import log_text, reward_text, wrapped
from rlvr_debug.logs.log import Array, Log

_FEWEST = 4  # rows of a quantity that both have
_NOISE = 3.0  # times what the two jump by from row to row
_RELATIVE = 0.05
_STAYS = 0.8  # of the rows from there on
_SHOWN = 12


@dataclass(frozen=True)
class Parting:
    """A quantity in two logs. step: from which on they are apart; one, other: means of the last third."""

    quantity: str
    step: float
    one: float
    other: float


@dataclass(frozen=True)
class Comparison:
    """sides: the two diagnoses. partings: by step. For each side, alone: findings whose check finds nothing in the other log;
    only: quantities that the other log has not. both: names of checks that find something in both.
    """

    sides: tuple[Diagnosis, Diagnosis]
    alone: tuple[tuple[Finding, ...], ...]
    only: tuple[tuple[str, ...], ...]
    both: tuple[str, ...]
    partings: tuple[Parting, ...]

    @property
    def columns(self) -> tuple[list[str], ...]:
        """Return what is logged on one side alone, by its own names."""
        return tuple(
            [each.log.sources[n] for n in names]
            for each, names in zip(self.sides, self.only, strict=True)
        )


def compare(one: Diagnosis, other: Diagnosis) -> Comparison:
    """Return what tells the two runs apart. Rows are compared by their steps."""
    found = [{f.check.name: f for f in x.findings if f.status == "found"} for x in (one, other)]
    names = [list(map(str, each.log.steps)) for each in (one, other)]
    shared = (name for name in names[0] if name in names[1])
    partings = [p for name in shared if (p := _parting(name, one.log, other.log)) is not None]
    return Comparison(
        (one, other),
        tuple(
            tuple(mine[name] for name in mine if name not in others)
            for mine, others in (found, found[::-1])
        ),
        tuple(tuple(n for n in a if n not in b) for a, b in (names, names[::-1])),
        tuple(name for name in found[0] if name in found[1]),
        tuple(sorted(partings, key=lambda each: each.step)),
    )


def _parting(name: str, one: Log, other: Log) -> Parting | None:
    """Return from where on the two stay further apart than each jumps from row to row; None where they never do."""
    columns = [one.steps[name], other.steps[name]]
    both = pd.concat(columns, axis="columns", join="inner").dropna()
    if len(both) < _FEWEST:
        return None
    first, second = (both.iloc[:, place].to_numpy(dtype=np.float64) for place in (0, 1))
    noise = float(np.hypot(_jump(first), _jump(second)))
    bound = np.maximum(_NOISE * noise, _RELATIVE * np.maximum(np.abs(first), np.abs(second)))
    apart = np.abs(first - second) > bound
    stays = np.cumsum(apart[::-1])[::-1] / np.arange(len(apart), 0, -1)
    places = np.flatnonzero(apart & (stays >= _STAYS))
    if not places.size:
        return None
    third = max(1, len(both) // 3)
    step = float(both.index.to_numpy()[places[0]])
    return Parting(name, step, float(first[-third:].mean()), float(second[-third:].mean()))


def _jump(values: Array) -> float:
    """Return the usual difference of neighbouring rows, as a deviation of one row."""
    return float(np.median(np.abs(np.diff(values))) * 1.4826 / np.sqrt(2))


def comparison_text(found: Comparison) -> str:
    """Return it for a terminal, A and B for the two logs."""
    return "\n".join(_lines(found)).rstrip()


def _lines(found: Comparison) -> Iterator[str]:
    for letter, each in zip("AB", found.sides, strict=True):
        yield from wrapped(f"{letter}: {log_text(each.log)}. {reward_text(each)}", "")
    for letter, findings in zip("AB", found.alone, strict=True):
        if findings:
            yield from ("", f"Found in {letter} alone:")
            for said in findings:
                cause = f"from {said.explained_by}" if said.explained_by else said.check.slug
                what = f"{said.check.name} ({cause}): {said.shown.sentence}"
                yield from wrapped(what, "  ")
    if found.both:
        yield ""
        yield from wrapped(f"Found in both: {', '.join(found.both)}.", "")
    yield ""
    yield from _apart(found.partings, found.sides[0].log.sources)
    for letter, names in zip("AB", found.columns, strict=True):
        if names:
            yield from wrapped(f"Logged in {letter} alone: {', '.join(names)}.", "")


def _apart(partings: tuple[Parting, ...], names: Mapping[str, str]) -> Iterator[str]:
    """Yield where two logs differ, by the first one's names."""
    if not partings:
        yield "Both logs stay close in every quantity that both have."
        return
    yield "Where the logs first differ, in order of time (means of the last third):"
    width = max(len(names[each.quantity]) for each in partings[:_SHOWN])
    for each in partings[:_SHOWN]:
        name = f"{names[each.quantity]:<{width}}"
        yield f"  {name}  from step {each.step:<6g} A {each.one:<10.4g} B {each.other:.4g}"
    if rest := partings[_SHOWN:]:
        yield from wrapped(f"And later: {', '.join(names[each.quantity] for each in rest)}.", "  ")


def comparison_json(found: Comparison) -> dict[str, Any]:
    first, second = (
        [
            {
                "check": f.check.name,
                "hypothesis": f.check.slug,
                "sentence": f.shown.sentence,
                "explained_by": f.explained_by,
            }
            for f in findings
        ]
        for findings in found.alone
    )
    return {
        "places": [each.log.place for each in found.sides],
        "learns": [each.learns for each in found.sides],
        "found_in_first": first,
        "found_in_second": second,
        "found_in_both": list(found.both),
        "partings": [vars(each) for each in found.partings],
        "only_in_first": list(found.only[0]),
        "only_in_second": list(found.only[1]),
    }
