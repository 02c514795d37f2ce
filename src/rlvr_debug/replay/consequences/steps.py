"""schedule, rate, weights moved: what a run is set to do to its weights."""

from __future__ import annotations

from itertools import pairwise

from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.record import Record

_RATE = 0.1
_AHEAD = 0.01  # of the rate, by the end at today's pace: warm-ups that begin slowly have a tenth of it early on
_MOVED = 0.5


def schedule(record: Record) -> Consequence | None:
    """Measure the warm-up's share of the training; None where no optimizer step was seen."""
    settings = record.settings
    if not any(update.optimizer for update in record.updates):
        return None
    share = settings.warmup_steps / max(settings.total_steps, 1)
    measured = {"warmup_steps": settings.warmup_steps, "total_steps": settings.total_steps}
    said = f"the warm-up of {settings.warmup_steps} steps does not end in the {settings.total_steps} steps of the training"
    return Consequence("schedule", measured, not settings.warmup_steps or share < 1, said)


def rate(record: Record) -> Consequence | None:
    """Measure the largest rate of the optimizer's groups against the one that is set; None where none was seen."""
    asked = record.settings.learning_rate
    rates = [max(g.learning_rate for g in u.groups) for u in record.updates if u.groups]
    if not rates or not asked:
        return None
    share, settings = max(rates) / asked, record.settings
    steepest = max((b - a for a, b in pairwise(rates)), default=asked)
    left = settings.total_steps - settings.first_step - len(rates)
    rising = steepest > 0 and (left < 0 or rates[-1] + steepest * (left + 1) >= _AHEAD * asked)
    measured = {"asked": asked, "in_effect": max(rates), **_moves(record)}
    said = f"the rate in effect is {max(rates):.3g}, {share:.3g} times the {asked:.3g} that is set"
    if "relative" in measured:
        said += f"; an update moves the weights by {measured['relative']:.2g} of their size"
    # a schedule that warms up, or has come to its end, is one that was asked for
    late = settings.first_step > settings.total_steps / 2
    return Consequence("rate in effect", measured, share >= _RATE or rising or late, said)


def weights_moved(record: Record) -> Consequence | None:
    """Measure how many of the trained numbers an update changes; None where weights or an optimizer's step were not seen."""
    measured = _moves(record)
    if not measured:
        return None
    said = (
        f"an update changes {measured['share']:.1%} of the trained numbers that have a gradient: the others are held in "
        "fewer digits than it moves them by"
    )
    return Consequence("weights moved", measured, measured["share"] >= _MOVED, said)


def _moves(record: Record) -> dict[str, float]:
    """Return by how much the updates with a gradient and a rate move the weights, and what share of these; {} where none was."""
    changed = count = 0
    moved = size = 0.0
    for update in record.updates:
        if update.clipped is None or not any(group.learning_rate for group in update.groups):
            continue
        if max(update.before, update.after) >= len(record.weights):
            continue  # the record has no weights
        before, after = record.weights[update.before], record.weights[update.after]
        for name in record.trainable:
            gradient = update.clipped.get(name)
            if gradient is None or name not in before or name not in after:
                continue
            old, new = (record.part(name, each[name]) for each in (before, after))
            off = new.double() - old.double()
            changed += int(((off != 0) & (gradient != 0)).sum())
            count += int((gradient != 0).sum())
            moved, size = (
                moved + float(off.square().sum()),
                size + float(old.double().square().sum()),
            )
    if not count or not size:
        return {}
    return {"share": changed / count, "relative": (moved / size) ** 0.5}
