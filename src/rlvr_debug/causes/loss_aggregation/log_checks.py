"""What a log shows for loss-aggregation."""

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, trend
from rlvr_debug.causes.readings import loss_is_large, shown_weight
from rlvr_debug.logs.log import Log

_LENGTH = 1.5
_TINY = 1e-6


def length_drifts(log: Log) -> Reading | None:
    lengths, rewards = trend(log.series("length")), trend(log.series("reward"))
    if lengths is None or rewards is None or lengths.first <= 0:
        return None
    growth = lengths.last / lengths.first
    drifts = lengths.rises and lengths.last >= _LENGTH * lengths.first and not rewards.rises
    values = {"first": lengths.first, "last": lengths.last}
    return Reading(MILD if drifts else 0, values, min(1.0, growth / 10))


def gradient_tiny(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    norms = norms[norms > 0]
    if norms.size < 4:
        return None
    median = float(np.median(norms))
    return Reading(LARGE if median < _TINY else 0, {"median": median}, 1.0)


def loss_large(log: Log) -> Reading | None:
    """A loss that advantages and KL do not add up to."""
    weight = shown_weight(log) or 0.0
    values = {"weight": weight, "first": float(log.series("grad_norm")[0])}
    return Reading(LARGE if loss_is_large(log, weight) else 0, values, 1.0)
