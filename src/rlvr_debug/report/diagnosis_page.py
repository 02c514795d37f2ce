"""What diagnosis found in one log, or what tells two apart -> one HTML page, with curves, marked places and rollouts.

It needs nothing beside itself, and has no script. All that a log or a model says is text.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.diagnosis.advice import to_log
from rlvr_debug.diagnosis.checks import Finding
from rlvr_debug.diagnosis.compare import Comparison, Parting
from rlvr_debug.diagnosis.evidence import Curve, Mark, Said, curve, evidence
from rlvr_debug.diagnosis.rank import Diagnosis
from rlvr_debug.diagnosis.report import (
    chance,
    in_order,
    log_text,
    not_ranked,
    reward_text,
    verdict_text,
)
from rlvr_debug.logs.log import Array, Log
from rlvr_debug.report.offline import policy, source, templates

_LONGEST = 1500  # characters of a turn that are shown
_MOST_PARTINGS = 12


@dataclass(frozen=True)
class Shown:
    """A finding with its charts and rollouts."""

    finding: Finding
    charts: "tuple[Drawn, ...]"
    rollouts: tuple[Said, ...]


def diagnosis_html(found: Diagnosis) -> str:
    reward = [drawn([curve(found.log, "reward", "end")])] if found.log.series("reward").size else []
    return _render(
        "diagnosis.html.j2",
        found=found,
        title=log_text(found.log),
        learns=f"{found.log.ends} {reward_text(found)}".strip(),
        verdict=verdict_text(found),
        reward=reward,
        suspected=[
            (each, chance(each.probability), [_shown(one, found.log) for one in each.findings])
            for each in found.ranked
        ],
        unseen=[(s, why.why) for s in found.unseen if (why := load_hypothesis(s).unseen)],
        to_log=to_log(found.findings, found.log),
        others=[(t, [_shown(f, found.log) for f in of]) for t, of in not_ranked(found).items()],
        fine=in_order(found, len(found.findings)),
        unchecked=[each for each in found.findings if each.status == "unchecked"],
    )


def comparison_html(found: Comparison) -> str:
    return _render(
        "comparison.html.j2",
        found=found,
        logs=[
            (name, log_text(each.log), reward_text(each))
            for name, each in zip("AB", found.sides, strict=True)
        ],
        alone=[
            (name, [_shown(each, of.log) for each in findings])
            for name, of, findings in zip("AB", found.sides, found.alone, strict=True)
        ],
        partings=list(_partings(found)),
        later=[each.quantity for each in found.partings[_MOST_PARTINGS:]],
        only=list(zip("AB", found.columns, strict=True)),
    )


def _partings(found: Comparison) -> "Iterator[tuple[Parting, Drawn]]":
    """Yield each quantity that parts the two, with both curves and the rows from there on marked."""
    for each in found.partings[:_MOST_PARTINGS]:
        curves = [curve(side.log, each.quantity) for side in found.sides]
        last = min(float(one.steps[-1]) for one in curves)
        said = f"apart from step {each.step:g}; last third: A {each.one:.4g}, B {each.other:.4g}"
        yield each, drawn(curves, Mark(((each.step, max(each.step, last)),), float("nan"), said))


def _shown(finding: Finding, log: Log) -> Shown:
    curves, rollouts = evidence(finding, log)
    return Shown(finding, tuple(drawn([each]) for each in curves), rollouts)


def _cut(text: str) -> str:
    half = _LONGEST // 2
    if len(text) <= _LONGEST:
        return text
    return f"{text[:half]} [… {len(text) - _LONGEST} characters …] {text[-half:]}"


def _render(name: str, **values: object) -> str:
    page = templates().get_template(name)
    style = Markup(source("check.css") + source("diagnosis.css"))
    return page.render(**values, policy=policy(), style=style, cut=_cut, width=WIDTH, height=HEIGHT)


# --- curves as SVG


WIDTH, HEIGHT = 360.0, 150.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 8.0, 20.0
_WIDE = 100.0  # times the median: from there on a linear scale shows one row
_TICKS = 4
_LEAST_BAND = 3.0
_MOST_POINTS = 1000


@dataclass(frozen=True)
class Drawn:
    """A chart in units of its view box: a path per line, the band that is marked, the level across it, and what it says."""

    name: str
    lines: tuple[str, ...]
    band: tuple[float, float] | None
    level: float | None
    xticks: tuple[tuple[float, str], ...]
    yticks: tuple[tuple[float, str], ...]
    says: str


@dataclass(frozen=True)
class _Scale:
    """From values to places between `start` and `end`. floor: of a logarithmic scale, the least value that it shows."""

    low: float
    high: float
    start: float
    end: float
    floor: float | None = None

    def at(self, values: Any) -> Any:
        shown = values if self.floor is None else np.log10(np.maximum(values, self.floor))
        return self.start + (shown - self.low) / (self.high - self.low) * (self.end - self.start)


def drawn(curves: Sequence[Curve], mark: Mark | None = None) -> Drawn:
    """Return the chart of a curve, or of one quantity in two runs. mark: instead of the first curve's own."""
    mark = mark or curves[0].mark
    steps = np.concatenate([each.steps for each in curves])
    x = _linear(steps, _LEFT, WIDTH - _RIGHT)
    y = _vertical(np.concatenate([each.values for each in curves]))
    scale = "" if y.floor is None else " (logarithmic)"
    return Drawn(
        curves[0].name,
        tuple(_path(x.at(each.steps), y.at(each.values)) for each in curves),
        _band(mark, x) if mark else None,
        float(y.at(mark.value)) if mark and math.isfinite(mark.value) else None,
        tuple((float(x.at(step)), f"{step:g}") for step in sorted({steps.min(), steps.max()})),
        tuple(_ticks(y)),
        f"{mark.says if mark else ''}{scale}".strip(),
    )


def _linear(values: Array, start: float, end: float) -> _Scale:
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        room = abs(high) / 2 or 1.0
        low, high = low - room, high + room
    return _Scale(low, high, start, end)


def _vertical(values: Array) -> _Scale:
    """Return a linear scale, or a logarithmic one where one row would press all others flat."""
    above = values[values > 0]
    wide = above.size and values.min() >= 0 and values.max() >= _WIDE * float(np.median(above))
    if not wide:
        return _linear(values, HEIGHT - _BOTTOM, _TOP)
    floor = float(above.min())
    return replace(
        _linear(np.log10(np.maximum(values, floor)), HEIGHT - _BOTTOM, _TOP), floor=floor
    )


def _band(mark: Mark, x: _Scale) -> tuple[float, float]:
    first, last = (float(x.at(step)) for step in mark.spans[-1])
    width = max(_LEAST_BAND, last - first)
    return (first + last - width) / 2, width


def _seen(values: Array) -> NDArray[np.int64]:
    """Return the places of what a screen can show of a long curve: the least and the largest value of each stretch."""
    if values.size <= _MOST_POINTS:
        return np.arange(values.size, dtype=np.int64)
    stretches = np.array_split(np.arange(values.size), _MOST_POINTS // 2)
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in stretches]
    return np.unique(np.array(ends, dtype=np.int64))


def _path(xs: Array, ys: Array) -> str:
    """Return the line through the points; of a single one, a dash."""
    shown = _seen(ys)
    xs, ys = xs[shown], ys[shown]
    points = [f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True)]
    if len(points) == 1:
        return f"M{points[0]}h2"
    return "M" + "L".join(points)


def _ticks(y: _Scale) -> Iterator[tuple[float, str]]:
    """Yield the places of round numbers, a few."""
    if y.floor is None:
        size = 10 ** math.floor(math.log10((y.high - y.low) / 2))
        size *= next(m for m in (5, 2, 1) if (y.high - y.low) / (size * m) >= 2)
        first, last = math.ceil(y.low / size), math.floor(y.high / size)
        for number in range(first, last + 1):
            yield float(y.at(number * size)), f"{number * size:.4g}"
        return
    first, last = math.ceil(y.low), math.floor(y.high)
    for power in range(first, last + 1, max(1, (last - first) // _TICKS + 1)):
        yield float(y.at(10.0**power)), f"1e{power}" if abs(power) > 3 else f"{10.0**power:g}"
