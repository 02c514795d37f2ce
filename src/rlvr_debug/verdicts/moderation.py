"""Spreads over seeds that borrow from the other arms of the study: moderated variances, as limma has them.

A variance over three seeds is hardly known; those of twenty arms say together what a variance is like. A prior is
fitted to them (Smyth, Statistical Applications in Genetics and Molecular Biology 2004), and each arm's variance is drawn
towards it. Of two seeds limma's own estimate of the variance comes out low and counts for too much: here it is the
pooled variance, and counts for less. The arms of one environment have two priors: one of those that move, and one of
those that stay where training began, whose spreads are a third of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from rlvr_debug.verdicts.statistics import Floats, Sample

Bools = NDArray[np.bool_]
_STEPS = 50  # of Newton's method, which takes about five
_BORROWED = 3  # the share that an arm borrows of what the others know is one of so many
_LEAST = (
    1e-2  # of the median variance: the least that one counts as, as two seeds may come out alike
)


@dataclass(frozen=True)
class Prior:
    """What the arms say of a variance before an arm's own seeds do.

    variance: the pooled one; freedom: how many degrees of freedom that is worth, 0 where the arms say nothing and
    infinite where they all spread alike; pooled: the degrees of freedom that it was fitted to. The three broadcast.
    """

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
    """Fit the prior of the members, which are on the last axis; it stays, with length 1.

    An arm of one seed says nothing of spreads; where fewer than two arms do there is no prior, nor where none
    spreads at all.
    """
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
    """Return each arm's prior, (..., arms): that of the arms that move like it.

    counted: an arm that has another's runs says nothing new.
    """
    moving, counted = np.asarray(moving), np.asarray(counted)
    of_moving, of_still = (fit_prior(arms, counted & group) for group in (moving, ~moving))
    return Prior(
        *(
            np.where(moving, getattr(of_moving, name), getattr(of_still, name))
            for name in ("variance", "freedom", "pooled")
        )
    )


def squeezed(arms: Sample, prior: Prior) -> Sample:
    """Return the arms with variances that are drawn towards the prior, and the degrees of freedom of both.

    The prior is worth at most a third of what the other arms have, as both sides of an effect borrow from it, and are
    not independent then. Of one seed nothing is known.
    """
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
