"""Statistics of a study, as small pure functions of arrays. Leading dimensions are studies or arms.

With 3 to 5 seeds a percentile bootstrap covers 80 to 87 % at a nominal 95 %, so intervals are t.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    """All that a t test asks of an arm; the spread of one seed is NaN; freedom: None for one less than the seeds."""

    mean: Floats
    sd: Floats
    seeds: NDArray[np.int64]
    freedom: Floats | None = None

    @property
    def degrees(self) -> Floats:
        return np.asarray(self.seeds - 1.0) if self.freedom is None else self.freedom

    def of(self, arms: Any) -> "Sample":
        """Those of some arms: an index of the last axis."""
        at = (..., arms)
        return Sample(self.mean[at], self.sd[at], self.seeds[at], self.degrees[at])


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
    """Compare two means with unequal variances (Welch 1947). Arguments: (..., seeds)."""
    return difference(sample(treated), sample(untreated), alpha)


def mean_estimate(values: ArrayLike, alpha: float) -> Estimate:
    """Student's t interval of a mean. values: (..., seeds)."""
    return mean_of(sample(values), alpha)


def difference(a: Sample, b: Sample, alpha: float) -> Estimate:
    """Return a's mean minus b's, with Welch's t interval."""
    return _estimate(a.mean - b.mean, *standard_error(a, b), alpha)


def mean_of(a: Sample, alpha: float) -> Estimate:
    """Return a's mean, with Student's t interval."""
    return _estimate(a.mean, np.asarray(a.sd / np.sqrt(a.seeds)), a.degrees, alpha)


def standard_error(a: Sample, b: Sample) -> tuple[Floats, Floats]:
    """Return that of the difference of the two means, NaN where a side has one seed or none, and its degrees of freedom (Satterthwaite)."""
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
    return _tails(a.mean - b.mean - difference, *standard_error(a, b), alternative)


def holm(p_values: ArrayLike) -> Floats:
    """Return p values adjusted (Holm 1979) over the last axis, of thousands of studies at once; NaN is no test, and becomes 1."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, axis=-1)  # NaN last
    left = np.isfinite(p).sum(-1, keepdims=True) - np.arange(p.shape[-1])
    scaled = np.take_along_axis(p, order, -1) * left
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(scaled, axis=-1), -1)
    return np.asarray(np.fmin(adjusted, 1.0))


# --- spreads over seeds that borrow from the other arms


Bools = NDArray[np.bool_]
_STEPS = 50  # of Newton's method, which takes about five
_BORROWED = 3  # the share that an arm borrows of what the others know is one of so many
_LEAST = (
    1e-2  # of the median variance: the least that one counts as, as two seeds may come out alike
)


@dataclass(frozen=True)
class Prior:
    """The pooled variance, the degrees of freedom that it is worth (0: none, infinite: all spread alike), and those it was fitted to."""

    variance: Floats
    freedom: Floats
    pooled: Floats


def trigamma_inverse(x: ArrayLike) -> Floats:
    """Return y with trigamma(y) = x, for x above 0, by Newton's method on 1 / trigamma (Smyth 2004, appendix)."""
    x = np.asarray(x, dtype=float)
    y = 0.5 + 1 / x
    for _ in range(_STEPS):
        value = special.polygamma(1, y)
        step = value * (1 - value / x) / special.polygamma(2, y)
        y = y + step
        if not (np.abs(step) > 1e-10 * y).any():
            break
    # beyond these the rounding of trigamma ends it
    return np.asarray(np.where(x > 1e7, 1 / np.sqrt(x), np.where(x < 1e-6, 1 / x, y)))


def fit_prior(arms: Sample, members: ArrayLike) -> Prior:
    """Fit the prior of the members on the last axis, which stays; it takes two arms with spreads."""
    sd, own = np.broadcast_arrays(arms.sd, arms.degrees)
    used = np.asarray(members) & np.isfinite(sd) & (own > 0)
    count = used.sum(-1, keepdims=True)
    with np.errstate(all="ignore"):
        variance = np.where(used, sd**2, np.nan)
        least = _LEAST * _median(variance)
        variance = np.where(used, np.fmax(variance, least), np.nan)
        half = np.where(used, own / 2, np.nan)
        logs = np.log(variance) - special.digamma(half) + np.log(half)
        mean = _mean(logs, count)
        excess = np.nansum((logs - mean) ** 2, -1, keepdims=True) / (count - 1)
        excess = excess - _mean(special.polygamma(1, np.where(used, half, 1.0)), count, used)
        freedom = 2 * trigamma_inverse(np.where(excess > 0, excess, 1.0))
    pooled = np.where(used, own, 0).sum(-1, keepdims=True).astype(float)
    with np.errstate(all="ignore"):
        shared = np.nansum(np.where(used, own * variance, 0), -1, keepdims=True) / pooled
    known = (count > 1) & (least > 0)
    return Prior(
        np.where(known, shared, 0.0),
        np.where(known, np.where(excess > 0, freedom, np.inf), 0.0),
        pooled,
    )


def _median(values: Floats) -> Floats:
    """Over the last axis, which stays; NaN counts for nothing, and 0 is that of nothing."""
    ordered = np.sort(values, -1)  # NaN last
    count = np.isfinite(values).sum(-1, keepdims=True)
    lower, upper = (np.clip(index, 0, None) for index in ((count - 1) // 2, count // 2))
    upper = np.minimum(upper, values.shape[-1] - 1)
    found = (np.take_along_axis(ordered, lower, -1) + np.take_along_axis(ordered, upper, -1)) / 2
    return np.where(count > 0, found, 0.0)


def _mean(values: Floats, count: NDArray[np.int64], used: ArrayLike = True) -> Floats:
    return np.asarray(np.nansum(np.where(used, values, 0.0), -1, keepdims=True) / count)


def moves(gain: Floats, minimum: float) -> Bools:
    """Return which arms are at least half of the minimum effect away from where training began."""
    return np.asarray(np.abs(gain) >= minimum / 2)


def priors(arms: Sample, moving: ArrayLike, counted: ArrayLike = True) -> Prior:
    """Return each arm's prior, (..., arms): that of the arms that move like it; counted: whose runs are not another's."""
    moving, counted = np.asarray(moving), np.asarray(counted)
    of_moving, of_still = (fit_prior(arms, counted & group) for group in (moving, ~moving))
    return Prior(
        *(
            np.where(moving, getattr(of_moving, name), getattr(of_still, name))
            for name in ("variance", "freedom", "pooled")
        )
    )


def squeezed(arms: Sample, prior: Prior) -> Sample:
    """Return the arms with variances drawn towards the prior, which is worth at most a third of what the other arms have."""
    own = arms.degrees
    worth = np.minimum(prior.freedom, np.maximum(prior.pooled - own, 0) / _BORROWED)
    known = np.isfinite(arms.sd) & (own > 0)
    with np.errstate(all="ignore"):
        variance = (worth * prior.variance + own * arms.sd**2) / (worth + own)
    return Sample(
        arms.mean,
        np.where(known, np.sqrt(variance), np.nan),
        arms.seeds,
        np.where(known, worth + own, 0.0),
    )
