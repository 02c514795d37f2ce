"""What may keep a run from learning though every segment agrees: it is as it was set, and measured in the record."""

from __future__ import annotations

from collections.abc import Callable

from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.consequences.correction import CORRECTION, correction
from rlvr_debug.replay.consequences.limits import LIMITS, limits
from rlvr_debug.replay.consequences.loss import (
    KL_GRADIENT,
    KL_SHARE,
    UNREAD,
    kl_gradient,
    kl_share,
    unread,
)
from rlvr_debug.replay.consequences.rewards import (
    CONTRAST,
    NEARLY_EQUAL,
    OF_PROMPTS,
    contrast,
    nearly_equal,
    of_prompts,
)
from rlvr_debug.replay.consequences.rows import (
    ANSWERS,
    PROMPTS,
    ROWS,
    answers_in_prompts,
    distinct_prompts,
    rows_repeated,
)
from rlvr_debug.replay.consequences.steps import (
    MOVED,
    RATE,
    SCHEDULE,
    rate,
    schedule,
    weights_moved,
)
from rlvr_debug.replay.record import Record

__all__ = ["CONSEQUENCES", "Consequence", "consequences_of"]

# in the order of a training step
CONSEQUENCES: dict[str, Callable[[Record], Consequence | None]] = {
    ROWS: rows_repeated,
    PROMPTS: distinct_prompts,
    ANSWERS: answers_in_prompts,
    LIMITS: limits,
    OF_PROMPTS: of_prompts,
    CONTRAST: contrast,
    NEARLY_EQUAL: nearly_equal,
    CORRECTION: correction,
    KL_GRADIENT: kl_gradient,
    KL_SHARE: kl_share,
    UNREAD: unread,
    SCHEDULE: schedule,
    RATE: rate,
    MOVED: weights_moved,
}


def consequences_of(record: Record) -> tuple[Consequence, ...]:
    """Return those that can be measured in the record."""
    found = (measure(record) for measure in CONSEQUENCES.values())
    return tuple(each for each in found if each is not None)
