"""What a log shows for skipped-steps."""

from __future__ import annotations

from rlvr_debug.causes.check import LARGE, Reading
from rlvr_debug.logs.log import Log

__all__ = ["steps_skipped"]

_SKIPPED = 0.1


def steps_skipped(log: Log) -> Reading | None:
    moved = log.series("weights_moved")
    if moved.size < 4:
        return None
    share = float((moved == 0).mean())
    strength = LARGE if _SKIPPED <= share < 1 else 0
    return Reading(strength, {"share": share, "rest": 1 - share}, share)
