"""rows repeated, schedule: what a run is set to do over its course."""

from __future__ import annotations

from rlvr_debug.replay.consequences.base import Consequence, consequence
from rlvr_debug.replay.record import Record

__all__ = ["ROWS", "SCHEDULE", "rows_repeated", "schedule"]

ROWS, SCHEDULE = "rows repeated", "schedule"


def rows_repeated(record: Record) -> Consequence | None:
    """Measure how many generations are of rows that an earlier one was of; None where fewer than two were seen."""
    drawn = [
        frozenset(str(row.get("prompt")) for row in generation.rows)
        for generation in record.generations
        if generation.rows
    ]
    if len(drawn) < 2:
        return None
    repeated = len(drawn) - len(set(drawn))
    said = f"{repeated + 1} of {len(drawn)} generations are of the same rows"
    return consequence(ROWS, {"generations": len(drawn), "repeated": repeated}, not repeated, said)


def schedule(record: Record) -> Consequence | None:
    """Measure the warm-up's share of the training; None where no optimizer step was seen."""
    settings = record.settings
    if not any(update.optimizer for update in record.updates):
        return None
    share = settings.warmup_steps / max(settings.total_steps, 1)
    measured = {"warmup_steps": settings.warmup_steps, "total_steps": settings.total_steps}
    said = f"the warm-up of {settings.warmup_steps} steps does not end in the {settings.total_steps} steps of the training"
    return consequence(SCHEDULE, measured, not settings.warmup_steps or share < 1, said)
