"""processes: those that train together hold the same policy and the same settings, and each has rows of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Literal

from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Generation, Process, Record
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "processes"
Digests = Mapping[str, str]
_Wrong = Literal[
    "settings differ",
    "weights differ",
    "gradients differ",
    "the optimizer's states differ",
    "the random states are the same",
    "rows are the same",
    "without rows or updates",
]
_SHOWN = 3


def instances(record: Record, _: Network) -> Iterator[Instance]:
    if not record.processes:
        return
    first, *others = record.processes
    for number, other in enumerate(others, 1):
        names = _other_settings(record, other)
        said = f"settings of process {number} differ from those of process 0: {', '.join(names)}"
        yield _instance("the beginning", {"settings differ": bool(names)}, said)
        yield from _same(
            "the beginning", "weights differ", first.weights[:1], other.weights[:1], number
        )
    for number, generation in enumerate(record.generations):
        yield from _drawn(record, number, generation)
    for number in range(len(record.updates)):
        where = f"update {number + 1}"
        counts = Counter(micro.process for micro in record.updates[number].micro_batches)
        without = [str(n) for n in range(record.size) if not counts[n]]
        said = f"process {', '.join(without)} has no backward pass"
        yield _instance(where, {"without rows or updates": bool(without)}, said)
        for rank, other in enumerate(others, 1):
            here = slice(number, number + 1)
            after = slice(number + 1, number + 2)
            yield from _same(
                where, "gradients differ", first.gradients[here], other.gradients[here], rank
            )
            yield from _same(
                where, "weights differ", first.weights[after], other.weights[after], rank
            )
            yield from _same(
                where, "the optimizer's states differ", first.states[here], other.states[here], rank
            )


def _instance(where: str, found: Mapping[_Wrong, bool], said: str) -> Instance:
    wrong = [name for name, is_so in found.items() if is_so]
    return Instance(where, partial(_compare, wrong), partial(str, said))


def _compare(found: Sequence[_Wrong], *, wrong: _Wrong | None = None) -> Gap:
    return different(wrong not in found if wrong else len(found))


def _other_settings(record: Record, process: Process) -> list[str]:
    """Return the settings that differ from the record's, with both values."""
    if process.settings is None:
        return []
    pairs = (
        (f.name, getattr(process.settings, f.name), getattr(record.settings, f.name))
        for f in fields(record.settings)
    )
    return [f"{name} {own!r} and {common!r}" for name, own, common in pairs if own != common]


def _same(
    where: str, what: _Wrong, one: Sequence[Digests], other: Sequence[Digests], rank: int
) -> Iterator[Instance]:
    """Yield whether what process 0 and another held has the same digests. what: the sentence where it has not."""
    if not one or not other:
        return
    names = [
        name for name in one[0].keys() | other[0].keys() if one[0].get(name) != other[0].get(name)
    ]
    shown = ", ".join(sorted(names)[:_SHOWN])
    said = (
        f"{what} between process 0 and process {rank}: {len(names)} of {len(one[0].keys() | other[0].keys())} tensors "
        f"({shown})"
    )
    yield _instance(where, {what: bool(names)}, said)


def _drawn(record: Record, number: int, generation: Generation) -> Iterator[Instance]:
    """Yield whether each process has rows, of its own, and draws tokens of its own."""
    where = f"generation {number + 1}"
    counts = Counter(generation.processes)
    without = [str(n) for n in range(record.size) if not counts[n]]
    if without:
        said = f"process {', '.join(without)} has no rows"
        yield _instance(where, {"without rows or updates": True}, said)
        return
    if not generation.rows:
        return
    pairs = [*zip(generation.processes, map(str, generation.rows), strict=True)]
    own = [Counter(row for process, row in pairs if process == n) for n in range(record.size)]
    # a group may be spread over processes; more of one row than a group is are copies
    size = record.settings.group_size
    copies = [
        n
        for n in range(1, record.size)
        if own[n] == own[0] and any((own[0] + own[n])[row] > size for row in own[0])
    ]
    enough = record.settings.data_rows >= len(pairs) // size
    said = (
        f"process {', '.join(map(str, copies))} has the rows of process 0, and the data have others"
    )
    yield _instance(where, {"rows are the same": bool(copies) and enough}, said)
    states = [p.random[number] for p in record.processes if number < len(p.random)]
    sampled = any(call.used is not None and call.used.drawn for call in generation.calls)
    if len(states) == record.size and sampled:
        alike = [n for n in range(1, record.size) if states[n] == states[0] and own[n] & own[0]]
        said = (
            f"process {', '.join(map(str, alike))} draws tokens with the random numbers of process 0, and both have "
            "rollouts of the same rows"
        )
        yield _instance(where, {"the random states are the same": bool(alike)}, said)


KNOBS = knobs_of(_compare)
