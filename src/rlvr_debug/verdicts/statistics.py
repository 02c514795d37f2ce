"""Statistics of a study, as small pure functions of arrays. Leading dimensions are studies or arms.

With 3 to 5 seeds a percentile bootstrap covers 80 to 87 % at a nominal 95 %, so intervals are t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A point estimate with its two-sided interval, and the p value of its being zero."""

    value: Floats
    low: Floats
    high: Floats
    p: Floats


@dataclass(frozen=True)
class Sample:
    """All that a t test asks of an arm. All broadcast; the spread of one seed is NaN.

    freedom: the degrees of freedom of the spread; None: one less than the seeds.
    """

    mean: Floats
    sd: Floats
    seeds: NDArray[np.int64]
    freedom: Floats | None = None

    @property
    def degrees(self) -> Floats:
        return np.asarray(self.seeds - 1.0) if self.freedom is None else self.freedom


def sample(values: ArrayLike) -> Sample:
    """values: (..., seeds)."""
    a = np.asarray(values, dtype=float)
    seeds = a.shape[-1]
    if seeds < 2:
        sd = np.full(a.shape[:-1], np.nan)
    else:  # equal values may differ from their own mean by rounding
        sd = np.where(np.ptp(a, axis=-1) == 0, 0.0, a.std(axis=-1, ddof=1))
    return Sample(a.mean(axis=-1), sd, np.asarray(seeds))


def first_of(values: Floats, seeds: NDArray[np.int64]) -> Sample:
    """Return the sample of the first so many of the values. values: (..., seeds); seeds: (...); of none it is NaN."""
    used = np.arange(values.shape[-1]) < seeds[..., None]
    with np.errstate(all="ignore"):
        mean = (values * used).sum(-1) / seeds
        squares = ((values - mean[..., None]) ** 2 * used).sum(-1)
        return Sample(mean, np.sqrt(squares / np.where(seeds > 1, seeds - 1, np.nan)), seeds)


def welch(treated: ArrayLike, untreated: ArrayLike, alpha: float) -> Estimate:
    """Difference of two means with unequal variances (Welch 1947). Arguments: (..., seeds)."""
    return difference(sample(treated), sample(untreated), alpha)


def mean_estimate(values: ArrayLike, alpha: float) -> Estimate:
    """Student's t interval of a mean. values: (..., seeds)."""
    return mean_of(sample(values), alpha)


def difference(a: Sample, b: Sample, alpha: float) -> Estimate:
    """Return a's mean minus b's, with Welch's t interval."""
    return _estimate(a.mean - b.mean, *_error(a, b), alpha)


def mean_of(a: Sample, alpha: float) -> Estimate:
    """Return a's mean, with Student's t interval."""
    return _estimate(a.mean, np.asarray(a.sd / np.sqrt(a.seeds)), a.degrees, alpha)


def standard_error(a: Sample, b: Sample) -> Floats:
    """Return that of the difference of the two means, NaN where a side has one seed or none."""
    return _error(a, b)[0]


def _error(a: Sample, b: Sample) -> tuple[Floats, Floats]:
    """Standard error of the difference, NaN where a side has one seed, and its degrees of freedom (Satterthwaite)."""
    with np.errstate(all="ignore"):
        one, other = a.sd**2 / a.seeds, b.sd**2 / b.seeds
        freedom = (one + other) ** 2 / (one**2 / a.degrees + other**2 / b.degrees)
    return np.sqrt(one + other), freedom


def _estimate(value: Floats, error: Floats, freedom: Floats, alpha: float) -> Estimate:
    """Where the spread is not known the interval is infinite; without any it is a point, and p is 0 or 1."""
    value, error, freedom = np.broadcast_arrays(value, error, freedom)
    half = special.stdtrit(np.where(error > 0, freedom, 1.0), 1 - alpha / 2) * error
    half = np.where(np.isnan(error), np.inf, half)
    return Estimate(value, value - half, value + half, _tails(value, error, freedom, "two-sided"))


def _tails(value: Floats, error: Floats, freedom: Floats, alternative: str) -> Floats:
    """p of a mean of 0. 1 where nothing speaks against it: one seed, or no spread and just that mean."""
    with np.errstate(all="ignore"):
        t = value / error
    far = {"two-sided": -np.abs(t), "greater": -t, "less": t}[alternative]
    p = special.stdtr(np.where(error > 0, freedom, 1.0), far)
    return np.where(np.isnan(p), 1.0, p * (2 if alternative == "two-sided" else 1))


def slope_estimate(curves: Sequence[Sequence[float]], alpha: float) -> Estimate:
    """Mean over seeds of each curve's least-squares slope per step. One step has no slope."""
    if min(map(len, curves)) < 2:
        return mean_of(Sample(np.zeros(()), np.full((), np.nan), np.ones((), dtype=int)), alpha)
    return mean_estimate([np.polyfit(np.arange(len(c)), c, 1)[0] for c in curves], alpha)


def welch_p(a: Sample, b: Sample) -> Floats:
    """Two-sided p value of equal means. 1 where the spread is not known."""
    return _p(a, b, 0.0, "two-sided")


def equivalence_p(a: Sample, b: Sample, margin: float) -> Floats:
    """p value of means that differ by `margin` or more: two one-sided tests (Schuirmann 1987)."""
    return np.maximum(_p(a, b, -margin, "greater"), below_p(a, b, margin))


def below_p(a: Sample, b: Sample, margin: float) -> Floats:
    """p value of a's mean being `margin` or more above b's: one one-sided test."""
    return _p(a, b, margin, "less")


def _p(a: Sample, b: Sample, difference: float, alternative: str) -> Floats:
    return _tails(a.mean - b.mean - difference, *_error(a, b), alternative)


def holm(p_values: ArrayLike) -> Floats:
    """Adjusted p values (Holm 1979) over the last axis, in the given order. NaN is no test: it is not
    counted, and adjusted to 1.

    statsmodels' multipletests corrects one study a call; this one thousands.
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, axis=-1)  # NaN last
    left = np.isfinite(p).sum(-1, keepdims=True) - np.arange(p.shape[-1])
    scaled = np.take_along_axis(p, order, -1) * left
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(scaled, axis=-1), -1)
    return np.asarray(np.fmin(adjusted, 1.0))
