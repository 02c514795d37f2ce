"""Batches that were sampled for an earlier generation than the one that is trained on them: training runs behind."""

from __future__ import annotations

from dataclasses import replace

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Generation, Record
from rlvr_debug.replay.rollouts import batch_of, rollouts, trained_ids

__all__ = ["in_time", "origins"]


def origins(record: Record) -> list[int]:
    """Return of which generation each generation's batch is.

    That is its own, unless all of its rows are, token by token, those of an earlier one and not of its own.
    """
    found = []
    for number, generation in enumerate(record.generations):
        before = range(number - 1, -1, -1)
        fitting = (n for n in (number, *before) if _sampled_in(record, generation, n))
        found.append(next(fitting, number))
    return found


def _sampled_in(record: Record, generation: Generation, number: int) -> bool:
    """Return whether a generation's batch is what was sampled in this one."""
    try:
        batch = batch_of(generation)
        sampled = rollouts(replace(record.generations[number], batch=batch), record.settings)
    except NotSeen:
        return False
    return trained_ids(batch, sampled, record.settings.pad_id) == [each.ids for each in sampled]


def in_time(record: Record) -> Record:
    """Return the record with each batch at the generation that it was sampled in.

    It ends before the first generation whose batch was never given out.
    """
    found = origins(record)
    if found == [*range(len(found))]:
        return record
    pairs = zip(found, record.generations, strict=True)
    batches = {origin: generation.batch for origin, generation in reversed([*pairs])}
    kept = []
    for number, generation in enumerate(record.generations):
        if number not in batches:
            break
        kept.append(replace(generation, batch=batches[number]))
    return replace(record, generations=kept)
