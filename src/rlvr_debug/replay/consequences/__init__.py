"""What may keep a run from learning though every segment agrees: it is as it was set, and measured in the record."""

from collections.abc import Callable

from rlvr_debug.replay.consequences import given, made, rewarded
from rlvr_debug.replay.finding import Consequence
from rlvr_debug.replay.judge import raised
from rlvr_debug.replay.record import Record

# in the order of a training step
CONSEQUENCES: dict[str, Callable[[Record], Consequence | None]] = {
    "rows repeated": given.rows_repeated,
    "distinct prompts": given.distinct_prompts,
    "answers in prompts": given.answers_in_prompts,
    "header": given.header,
    "rendered twice": given.rendered_twice,
    "tasks of a group": given.tasks,
    "limits": given.limits,
    "rewards of prompts": rewarded.of_prompts,
    "contrast": rewarded.contrast,
    "nearly equal rewards": rewarded.nearly_equal,
    "noise of rewards": rewarded.noise,
    "correction": made.correction,
    "KL's gradient": made.kl_gradient,
    "KL's share": made.kl_share,
    "cap": made.cap,
    "settings without effect": made.unread,
    "settings changed": made.changed,
    "schedule": made.schedule,
    "rate in effect": made.rate,
    "weights moved": made.weights_moved,
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
