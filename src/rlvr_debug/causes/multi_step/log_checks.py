"""What a log shows for multi-step."""

from __future__ import annotations

from rlvr_debug.causes.check import MILD, Reading, graded, trend
from rlvr_debug.logs.log import Log

_FEW_CALLS = 0.5
_FAILED_CALLS = {MILD: 0.5}


def few_tool_calls(log: Log) -> Reading | None:
    found = trend(log.series("tool_calls"))
    if found is None:
        return None
    few = found.last == 0 or (found.falls and found.last <= _FEW_CALLS * found.first)
    return Reading(MILD if few else 0, {"first": found.first, "last": found.last})


def tool_failures(log: Log) -> Reading | None:
    share = float(log.series("tool_failures").mean())
    return Reading(graded(share, _FAILED_CALLS), {"share": share}, share)
