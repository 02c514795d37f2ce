"""How far apart sampler and trainer are, by whatever a log has of it. Several causes read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading, graded
from rlvr_debug.logs.log import Array, Log

_OTHER_CONTEXT = {LARGE: 0.3}
_ELSEWHERE = {LARGE: 0.1}
_ONE = 0.03
_BLIND = 1.5  # nats per token

# what a log may have of the distance, the most telling first: quantity, name, its value where both agree, bound,
# and whether it may be off to either side
_DISTANCES = (
    ("sampler_gap", "mean |difference| of log-probabilities, nats", 0, 0.05, False),
    ("sampler_prob_gap", "mean |difference| of probabilities", 0, 0.01, False),
    ("sampler_factor", "mean exp(|difference|), less 1", 1, 0.05, False),
    ("sampler_kl", "KL of sampler and trainer, nats", 0, 0.05, True),
    ("sampler_ratio", "mean ratio of probabilities, less 1", 1, 0.1, True),
    ("sampler_pearson", "1 less the correlation of probabilities", 1, 0.05, True),
)


@dataclass(frozen=True)
class Gap:
    """The distance of sampler and trainer by row, what it is called, and the bound that rounding stays below.

    quantity: what it was read from.
    """

    quantity: str
    name: str
    values: Array
    bound: float


def gap(log: Log) -> Gap | None:
    for quantity, name, agreement, bound, both_sides in _DISTANCES:
        if (values := log.series(quantity) - agreement).size:
            return Gap(quantity, name, np.abs(values) if both_sides else values, bound)
    return None


def other_context(log: Log) -> Reading | None:
    """How far the trainer is from who sampled before anything was trained: by the gap, or by what entropy allows.

    Tokens that were sampled from a policy have, on average, its negative entropy as log-probability.
    """
    gaps = log.series("sampler_gap")
    if gaps.size:
        first = float(gaps[0])
    else:
        both = log.together("logprob", "entropy")
        if not len(both):
            return None
        first = -float(both[0].sum())
    ratios = log.series("sampler_ratio")
    bounds = _OTHER_CONTEXT
    if ratios.size:
        # two distributions over the same tokens have a mean ratio of 1, however far apart, and one that was cut above
        # it; below 1 it is where the trainer has its mass elsewhere
        elsewhere = float(ratios[: max(1, ratios.size // 3)].mean()) < 1 - _ONE
        bounds = _ELSEWHERE if elsewhere else {}
    return Reading(graded(first, bounds), {"first": first}, min(0.8, max(0.0, first) / 4))


def is_blind(found: Reading) -> bool:
    """Return whether replies are as unlikely as without the question: more than another sequence of it would make them."""
    return float(found.values["first"]) >= _BLIND
