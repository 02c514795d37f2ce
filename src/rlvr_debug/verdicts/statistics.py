"""Statistics of a study, as small pure functions of arrays.

With 3 to 5 seeds a percentile bootstrap covers 80 to 87 % at a nominal 95 %, so intervals are t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from statsmodels.stats.multitest import multipletests

__all__ = ["Estimate", "holm", "mean_estimate", "slope_estimate", "welch"]


@dataclass(frozen=True)
class Estimate:
    """A point estimate with its two-sided interval, and the p value of its being zero."""

    value: float
    low: float
    high: float
    p: float


def welch(treated: ArrayLike, untreated: ArrayLike, alpha: float) -> Estimate:
    """Difference of two means with unequal variances (Welch 1947). One value per seed each."""
    a, b = np.asarray(treated, dtype=float), np.asarray(untreated, dtype=float)
    value = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return Estimate(value, float("-inf"), float("inf"), 1.0)
    if np.ptp(a) == 0 and np.ptp(b) == 0:  # no spread at all: the t statistic does not exist
        return Estimate(value, value, value, float(value == 0))
    test = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(1 - alpha)
    return Estimate(value, float(interval.low), float(interval.high), float(test.pvalue))


def mean_estimate(values: ArrayLike, alpha: float) -> Estimate:
    """Student's t interval of a mean. One value per seed."""
    a = np.asarray(values, dtype=float)
    value = float(a.mean())
    if len(a) < 2:
        return Estimate(value, float("-inf"), float("inf"), 1.0)
    if np.ptp(a) == 0:
        return Estimate(value, value, value, float(value == 0))
    test = stats.ttest_1samp(a, 0.0)
    interval = test.confidence_interval(1 - alpha)
    return Estimate(value, float(interval.low), float(interval.high), float(test.pvalue))


def slope_estimate(curves: Sequence[Sequence[float]], alpha: float) -> Estimate:
    """Mean over seeds of each curve's least-squares slope per step. One step has no slope."""
    if min(map(len, curves)) < 2:
        return Estimate(0.0, float("-inf"), float("inf"), 1.0)
    return mean_estimate([np.polyfit(np.arange(len(c)), c, 1)[0] for c in curves], alpha)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values (Holm 1979), in the given order."""
    if not p_values:
        return []
    return [float(p) for p in multipletests(p_values, method="holm")[1]]
