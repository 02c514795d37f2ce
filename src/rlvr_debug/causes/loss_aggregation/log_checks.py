"""What a log shows for loss-aggregation."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, trend
from rlvr_debug.causes.kl_and_loss import kl_weight, large_at_first, rows_of
from rlvr_debug.logs.log import Log

_LENGTH = 1.5
_TINY = 1e-6
_MOVES = 5e-3
_NOT_MEANT = 3.0


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
    weight, (kl, _) = kl_weight(log), rows_of(log)
    norms = log.series("grad_norm")
    late = float(np.median(kl[-max(1, kl.size // 3) :])) if kl.size else 0.0
    moves = weight is not None and weight > _NOT_MEANT and _MOVES <= late < 1
    values = {"weight": weight or 0.0, "late": late, "first": float(norms[0])}
    return Reading(LARGE if moves and large_at_first(log) else 0, values, 1.0)
