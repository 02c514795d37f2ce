"""What may keep a run from learning though every segment agrees: it is as it was set, and measured in the record."""

from __future__ import annotations

from collections.abc import Callable

from rlvr_debug.replay.consequences import loss, rewards, rows, steps
from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.judge import raised
from rlvr_debug.replay.record import Record

# in the order of a training step
CONSEQUENCES: dict[str, Callable[[Record], Consequence | None]] = {
    "rows repeated": rows.rows_repeated,
    "distinct prompts": rows.distinct_prompts,
    "answers in prompts": rows.answers_in_prompts,
    "limits": rows.limits,
    "rewards of prompts": rewards.of_prompts,
    "contrast": rewards.contrast,
    "nearly equal rewards": rewards.nearly_equal,
    "correction": loss.correction,
    "KL's gradient": loss.kl_gradient,
    "KL's share": loss.kl_share,
    "settings without effect": loss.unread,
    "schedule": steps.schedule,
    "rate in effect": steps.rate,
    "weights moved": steps.weights_moved,
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
