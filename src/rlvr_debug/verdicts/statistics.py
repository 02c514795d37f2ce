"""Statistics of a study, as small pure functions of arrays. Leading dimensions are studies or arms.

With 3 to 5 seeds a percentile bootstrap covers 80 to 87 % at a nominal 95 %, so intervals are t.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

__all__ = [
    "Estimate",
    "Floats",
    "Sample",
    "equivalence_p",
    "holm",
    "mean_estimate",
    "sample",
    "slope_estimate",
    "welch",
    "welch_p",
]

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
    """All that a t test asks of an arm. The three broadcast; the spread of one seed is NaN."""

    mean: Floats
    sd: Floats
    seeds: NDArray[np.int64]


def sample(values: ArrayLike) -> Sample:
    """values: (..., seeds)."""
    a = np.asarray(values, dtype=float)
    seeds = a.shape[-1]
    if seeds < 2:
        sd = np.full(a.shape[:-1], np.nan)
    else:  # equal values may differ from their own mean by rounding
        sd = np.where(np.ptp(a, axis=-1) == 0, 0.0, a.std(axis=-1, ddof=1))
    return Sample(a.mean(axis=-1), sd, np.asarray(seeds))


def welch(treated: ArrayLike, untreated: ArrayLike, alpha: float) -> Estimate:
    """Difference of two means with unequal variances (Welch 1947). Arguments: (..., seeds)."""
    a, b = np.asarray(treated, dtype=float), np.asarray(untreated, dtype=float)
    value = a.mean(axis=-1) - b.mean(axis=-1)
    return _estimate(value, (a, b), lambda: stats.ttest_ind(a, b, axis=-1, equal_var=False), alpha)


def mean_estimate(values: ArrayLike, alpha: float) -> Estimate:
    """Student's t interval of a mean. values: (..., seeds)."""
    a = np.asarray(values, dtype=float)
    return _estimate(a.mean(axis=-1), (a,), lambda: stats.ttest_1samp(a, 0.0, axis=-1), alpha)


def _unknown(value: Floats) -> Estimate:
    """Of one seed, whose spread nobody knows."""
    infinite = np.full(value.shape, np.inf)
    return Estimate(value, -infinite, infinite, np.ones(value.shape))


def _estimate(
    value: Floats, samples: Sequence[Floats], test: Callable[[], Any], alpha: float
) -> Estimate:
    """test: a t test of the samples. Where they have no spread at all, its statistic does not exist."""
    if min(each.shape[-1] for each in samples) < 2:
        return _unknown(value)
    flat = np.all([np.ptp(each, axis=-1) == 0 for each in samples], axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of no spread
        found = test()
        low, high = (np.where(flat, value, end) for end in found.confidence_interval(1 - alpha))
    return Estimate(value, low, high, np.where(flat, value == 0, found.pvalue).astype(float))


def slope_estimate(curves: Sequence[Sequence[float]], alpha: float) -> Estimate:
    """Mean over seeds of each curve's least-squares slope per step. One step has no slope."""
    if min(map(len, curves)) < 2:
        return _unknown(np.zeros(()))
    return mean_estimate([np.polyfit(np.arange(len(c)), c, 1)[0] for c in curves], alpha)


def welch_p(a: Sample, b: Sample) -> Floats:
    """Two-sided p value of equal means. 1 where the spread is not known."""
    return _p(a, b, 0.0, "two-sided")


def equivalence_p(a: Sample, b: Sample, margin: float) -> Floats:
    """p value of means that differ by `margin` or more: two one-sided tests (Schuirmann 1987)."""
    return np.maximum(_p(a, b, -margin, "greater"), _p(a, b, margin, "less"))


def _p(a: Sample, b: Sample, difference: float, alternative: str) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        p = stats.ttest_ind_from_stats(
            a.mean - difference,
            *(a.sd, a.seeds, b.mean, b.sd, b.seeds),
            equal_var=False,
            alternative=alternative,
        ).pvalue
    # NaN: one seed, or no spread and just this difference. Neither says anything against it
    return np.where(np.isnan(p), 1.0, p)


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
