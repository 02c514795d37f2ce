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
from rlvr_debug.replay.judge import raised
from rlvr_debug.replay.record import Record

__all__ = ["CONSEQUENCES", "Consequence", "consequences_of", "measured"]

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


def measured(record: Record) -> tuple[tuple[Consequence, ...], tuple[str, ...]]:
    """Return those that can be measured in the record, and a line for each whose code raised."""
    found, failed = [], []
    for name, measure in CONSEQUENCES.items():
        try:
            one = measure(record)
        except Exception as error:  # the segments, and the other consequences, answer nevertheless
            failed.append(f"{name} could not be computed: {raised(error)}")
        else:
            found += [one] if one is not None else []
    return tuple(found), tuple(failed)


def consequences_of(record: Record) -> tuple[Consequence, ...]:
    """Return those that can be measured in the record."""
    found = (measure(record) for measure in CONSEQUENCES.values())
    return tuple(each for each in found if each is not None)
