"""Curves of a log as SVG that a template writes: no script, and no library that draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlvr_debug.diagnosis.evidence import Curve, Mark
from rlvr_debug.logs.log import Array

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

    def at(self, values: Array) -> Array:
        shown = values if self.floor is None else np.log10(np.maximum(values, self.floor))
        return self.start + (shown - self.low) / (self.high - self.low) * (self.end - self.start)

    def place(self, value: float) -> float:
        return float(self.at(np.array([value]))[0])


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
        y.place(mark.value) if mark and math.isfinite(mark.value) else None,
        tuple((x.place(step), f"{step:g}") for step in sorted({steps.min(), steps.max()})),
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
    found = _linear(np.log10(np.maximum(values, floor)), HEIGHT - _BOTTOM, _TOP)
    return _Scale(found.low, found.high, found.start, found.end, floor)


def _band(mark: Mark, x: _Scale) -> tuple[float, float]:
    first, last = x.place(mark.first), x.place(mark.last)
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
            yield y.place(number * size), f"{number * size:.4g}"
        return
    first, last = math.ceil(y.low), math.floor(y.high)
    for power in range(first, last + 1, max(1, (last - first) // _TICKS + 1)):
        yield y.place(10.0**power), f"1e{power}" if abs(power) > 3 else f"{10.0**power:g}"
