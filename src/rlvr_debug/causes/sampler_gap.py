"""How far apart sampler and trainer are, by whatever a log has of it. Several causes read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading, graded
from rlvr_debug.logs.log import Array, Log

__all__ = ["Gap", "gap", "other_context"]

_OTHER_CONTEXT = {LARGE: 0.5}

# what a log may have of the distance, the most telling first: quantity, name, its value where both agree, bound,
# and whether it may be off to either side
_DISTANCES = (
    ("sampler_gap", "mean |difference| of log-probabilities, nats", 0, 0.05, False),
    ("sampler_prob_gap", "mean |difference| of probabilities", 0, 0.01, False),
    ("sampler_factor", "mean exp(|difference|), less 1", 1, 0.05, False),
    ("sampler_kl", "KL of sampler and trainer, nats", 0, 0.05, True),
    ("sampler_ratio", "mean ratio of probabilities, less 1", 1, 0.1, True),
)


@dataclass(frozen=True)
class Gap:
    """The distance of sampler and trainer by row, what it is called, and the bound that rounding stays below."""

    name: str
    values: Array
    bound: float


def gap(log: Log) -> Gap | None:
    for quantity, name, agreement, bound, both_sides in _DISTANCES:
        if (values := log.series(quantity) - agreement).size:
            return Gap(name, np.abs(values) if both_sides else values, bound)
    return None


def other_context(log: Log) -> Reading | None:
    gaps = log.series("sampler_gap")
    first = float(gaps[: max(1, gaps.size // 3)].mean())
    return Reading(graded(first, _OTHER_CONTEXT), {"first": first}, min(1.0, first / 3))
