"""What may keep a run from learning though every segment agrees: it is as it was set, and measured in the record."""

from __future__ import annotations

from collections.abc import Callable

from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.consequences.correction import NAME as CORRECTION
from rlvr_debug.replay.consequences.correction import correction
from rlvr_debug.replay.consequences.course import ROWS, SCHEDULE, rows_repeated, schedule
from rlvr_debug.replay.consequences.kl_gradient import NAME as KL_GRADIENT
from rlvr_debug.replay.consequences.kl_gradient import kl_gradient
from rlvr_debug.replay.consequences.limits import NAME as LIMITS
from rlvr_debug.replay.consequences.limits import limits
from rlvr_debug.replay.consequences.rewards import CONTRAST, NEARLY_EQUAL, contrast, nearly_equal
from rlvr_debug.replay.record import Record

__all__ = ["CONSEQUENCES", "Consequence", "consequences_of"]

# in the order of a training step
CONSEQUENCES: dict[str, Callable[[Record], Consequence | None]] = {
    ROWS: rows_repeated,
    LIMITS: limits,
    CONTRAST: contrast,
    NEARLY_EQUAL: nearly_equal,
    CORRECTION: correction,
    KL_GRADIENT: kl_gradient,
    SCHEDULE: schedule,
}


def consequences_of(record: Record) -> tuple[Consequence, ...]:
    """Return those that can be measured in the record."""
    found = (measure(record) for measure in CONSEQUENCES.values())
    return tuple(each for each in found if each is not None)
