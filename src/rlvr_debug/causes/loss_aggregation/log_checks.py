"""What a log shows for loss-aggregation."""

from __future__ import annotations

from rlvr_debug.causes.check import MILD, Reading, trend
from rlvr_debug.logs.log import Log

_LENGTH = 1.5


def length_drifts(log: Log) -> Reading | None:
    lengths, rewards = trend(log.series("length")), trend(log.series("reward"))
    if lengths is None or rewards is None or lengths.first <= 0:
        return None
    growth = lengths.last / lengths.first
    drifts = lengths.rises and lengths.last >= _LENGTH * lengths.first and not rewards.rises
    values = {"first": lengths.first, "last": lengths.last}
    return Reading(MILD if drifts else 0, values, min(1.0, growth / 10))
