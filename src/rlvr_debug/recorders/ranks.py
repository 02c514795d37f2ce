"""One record of what several processes recorded, each of its own rows: that of one process with the union of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.recorders.keeping import Cut, stacked
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.network import plain_weights
from rlvr_debug.replay.record import (
    Call,
    Changed,
    Generation,
    MicroBatch,
    Process,
    Record,
    Update,
)
from rlvr_debug.replay.rollouts import rows_of
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.replay.store import digest

Moment = tuple[str | int, ...]  # of what, and its place
# processes number their rows from a multiple of it on; a number below it is of whoever trains the row
APART = 1 << 20
_HELD = ("gradients", "clipped", "state", "state_after")  # of an update, by parameter


def part_of(record: Record, random: Sequence[str], cut: Cut, *, main: bool) -> Record:
    """Return what a process gives to the record of all: pieces of what is cut up, of all else digests; the main one all it has."""
    updates, whole = record.updates, [n for n in record.trainable if n not in cut.weights]
    process = Process(
        settings=record.settings,
        weights=[
            {n: digest(weights[n] if cut.moved else record.part(n, weights[n])) for n in whole}
            for weights in record.weights
        ],
        gradients=[
            {n: digest(g) for n, g in (update.gradients or {}).items() if n not in cut.moved}
            for update in updates
        ],
        states=[
            {
                name: digest(*(state[key] for key in sorted(state)))
                for name, state in update.state_after.items()
                if name not in cut.moved
            }
            for update in updates
        ],
        random=[*random],
    )
    if main:
        return replace(record, processes=[process])

    def pieces(tensors: Mapping[str, Any] | None, shapes: Mapping[str, Any]) -> Any:
        return tensors and {name: held for name, held in tensors.items() if name in shapes}

    return replace(
        record,
        processes=[process],
        tokenizer=None,
        weights=[pieces(weights, cut.weights) for weights in record.weights if cut.weights],
        reference=pieces(record.reference, cut.weights) or None,
        saved=None,
        updates=[
            replace(update, **{name: pieces(getattr(update, name), cut.moved) for name in _HELD})
            for update in updates
        ],
    )


def merged(parts: Sequence[Record], cut: Cut | None = None) -> Record:
    """Return one record of what each process recorded, in their order: the first one's, with the rows of all."""
    cut = cut or Cut()
    if cut.weights:
        parts = _in_step(parts)
    first = _pieced(parts, cut)
    parts = [first, *parts[1:]]
    held = first.processes[0].weights
    numbers = [
        [*range(len(held))] if cut.weights else _numbers(held, part.processes[0].weights)
        for part in parts
    ]
    made = [*zip(*(part.generations for part in parts), strict=False)]
    generations = [_generation(first.settings, each, numbers) for each in made]
    starts = [*map(_starts, made)]
    updates = [
        _update(each, numbers, starts)
        for each in zip(*(part.updates for part in parts), strict=False)
    ]
    unseen = {name: why for part in reversed(parts) for name, why in part.unseen.items()}
    counts = {len(part.updates) for part in parts}
    notes = [note for part in parts for note in part.notes]
    if len(counts) > 1:
        said = f"the processes made {sorted(counts)} updates"
        notes.append(f"{said}; only those that all processes made are checked")
    return replace(
        first,
        generations=generations,
        updates=updates,
        notes=[*dict.fromkeys(notes)],
        unseen=unseen,
        processes=[_process(first, part) for part in parts],
    )


def _in_step(parts: Sequence[Record]) -> Sequence[Record]:
    """Return the parts with one numbering of weights: the states that all shards were in together, in the order of time.

    One rank's shard may change where no other does.
    """
    seen: list[dict[Moment, int]] = [{} for _ in parts]
    for each, part in zip(seen, parts, strict=True):
        _renumbered(part, each.setdefault)
    if all(own == seen[0] for own in seen):
        return parts
    shared = [moment for moment in seen[0] if all(moment in own for own in seen)]
    states = sorted({tuple(own[moment] for own in seen) for moment in shared})

    def place(rank: int, moment: Moment, number: int) -> int:
        if moment in shared:
            return states.index(tuple(own[moment] for own in seen))
        later = (place for place, state in enumerate(states) if state[rank] >= number)
        return next(later, len(states) - 1)

    found = []
    for rank, part in enumerate(parts):
        own = _renumbered(part, partial(place, rank))
        digests = own.processes[0].weights
        process = replace(own.processes[0], weights=[digests[state[rank]] for state in states])
        weights = [part.weights[state[rank]] for state in states]
        found.append(replace(own, weights=weights, processes=[process]))
    return found


def _renumbered(part: Record, number: Callable[[Moment, int], int]) -> Record:
    """Return the record with another number for the weights of each moment: a call, a backward pass, an update's ends."""

    def at(moment: Moment, weights: int | None) -> int | None:
        return None if weights is None else number(moment, weights)

    return replace(
        part,
        generations=[
            replace(
                each,
                weights=at(("sampled", place), each.weights),
                calls=[
                    replace(call, weights=at(("call", place, turn), call.weights))
                    for turn, call in enumerate(each.calls)
                ],
            )
            for place, each in enumerate(part.generations)
        ],
        updates=[
            replace(
                each,
                before=number(("before", place), each.before),
                after=number(("after", place), each.after),
                micro_batches=[
                    replace(micro, weights=number(("backward", place, turn), micro.weights))
                    for turn, micro in enumerate(each.micro_batches)
                ],
            )
            for place, each in enumerate(part.updates)
        ],
    )


def _pieced(parts: Sequence[Record], cut: Cut) -> Record:
    first = parts[0]
    known: dict[Any, Tensor] = {}  # frozen weights are the same tensors in every state

    def whole(held: Sequence[Any], shapes: Mapping[str, torch.Size], name: str = "") -> Any:
        """Return what is made of the pieces of all ranks. held: of each rank a tensor, or what holds tensors by name."""
        piece = held[0]
        if isinstance(piece, Mapping):
            names = dict.fromkeys(n for each in held for n in each or ())
            own = {n: [each[n] for each in held if each and n in each] for n in names}
            return {n: whole(pieces, shapes, name or n) for n, pieces in own.items()}
        shape = shapes.get(name)
        if shape is None or not piece.dim():
            return piece
        key = tuple(map(id, held))
        if key not in known:
            flat = torch.cat([each.flatten() for each in held])
            known[key] = flat if name in cut.elements else flat[: shape.numel()].view(shape)
        return known[key]

    def update(each: Sequence[Update]) -> Update:
        held = {name: [getattr(own, name) for own in each] for name in _HELD}
        parts: dict[str, Any] = {
            name: None if own[0] is None else whole(own, cut.moved) for name, own in held.items()
        }
        if not cut.moved:
            return replace(each[0], **parts)
        norms = zip(*(own.norms for own in each if own.norms), strict=True)
        return replace(each[0], **parts, norms=tuple(math.hypot(*own) for own in norms) or None)

    weights = [
        whole(each, cut.weights)
        for each in zip(*(part.weights for part in parts if part.weights), strict=True)
    ]
    reference = first.reference and whole([part.reference for part in parts], cut.weights)
    return replace(
        first,
        elements=cut.elements or first.elements,
        weights=weights,
        reference=reference if cut.adapter is None else plain_weights(weights[0], cut.adapter),
        updates=[update(each) for each in zip(*(part.updates for part in parts), strict=False)],
    )


def _process(first: Record, part: Record) -> Process:
    own = part.processes[0]
    updates = part.updates
    # as each update finds them: what changed them after the one before may be a callback
    order = [*(update.before for update in updates), updates[-1].after] if updates else [0]
    return replace(
        own,
        settings=None if part.settings == first.settings else part.settings,
        weights=[own.weights[number] for number in order],
    )


def _numbers(held: Sequence[Mapping[str, str]], own: Sequence[Mapping[str, str]]) -> list[int]:
    """Return by the number of a process' weights the number of the first one's that are the same, or else the nearest."""
    known = {tuple(sorted(each.items())): number for number, each in reversed([*enumerate(held)])}
    last = len(held) - 1
    return [
        known.get(tuple(sorted(each.items())), min(number, last)) for number, each in enumerate(own)
    ]


def _count(generation: Generation) -> int:
    batch = generation.batch
    return len(generation.rows) or (0 if batch is None else len(batch.prompt_ids))


def _starts(generations: Sequence[Generation]) -> list[int]:
    counts = [_count(each) for each in generations]
    return [sum(counts[:rank]) for rank in range(len(counts))]


def _numbered(numbers: Sequence[int], weights: int | None) -> int | None:
    return None if weights is None else numbers[weights]


def _generation(
    settings: Settings, parts: Sequence[Generation], numbers: Sequence[Sequence[int]]
) -> Generation:
    counts, starts = [_count(each) for each in parts], _starts(parts)
    own = []
    for each, count, start in zip(parts, counts, starts, strict=True):
        rewards = each.rewards
        if rewards is not None and len(rewards) != count:  # it may hold those of all
            rewards = rewards[start : start + count] if len(rewards) == sum(counts) else None
        own.append(replace(each, calls=[], reward_calls=[], rewards=rewards, changed=Changed()))
    reward_calls = [*zip(*(each.reward_calls for each in parts), strict=False)]
    whole: Generation = _joined(own, settings.pad_id)
    return replace(
        whole,
        weights=_numbered(numbers[0], parts[0].weights),
        calls=_calls(settings.sampling, parts, starts, numbers),
        reward_calls=[
            _joined(calls) for calls in reward_calls if len({c.index for c in calls}) == 1
        ],
        processes=[rank for rank, count in enumerate(counts) for _ in range(count)],
        changed=parts[0].changed,
    )


def _calls(
    asked: Sampling,
    parts: Sequence[Generation],
    starts: Sequence[int],
    numbers: Sequence[Sequence[int]],
) -> list[Call]:
    """Return the calls of all processes, those of the same turn as one."""
    try:
        rows = [rows_of(each.calls) for each in parts]
    except NotSeen:
        return []
    found = []
    for turn in range(max(len(each.calls) for each in parts)):
        of = [rank for rank, each in enumerate(parts) if turn < len(each.calls)]
        calls = [parts[rank].calls[turn] for rank in of]
        known = all(call.logprobs or not call.outputs for call in calls)
        whole = _joined(calls)
        found.append(
            replace(
                whole,
                logprobs=whole.logprobs if known else [],
                used=_used(asked, [call.used for call in calls]),
                weights=_numbered(numbers[of[0]], calls[0].weights),
                rows=[starts[rank] + row for rank in of for row in rows[rank][turn]],
            )
        )
    return found


def _used(asked: Sampling, used: Sequence[Sampling | None]) -> Sampling | None:
    """Return the settings that the processes sampled with; where they differ, those furthest from what was asked for."""
    names = [field.name for field in fields(Sampling)]
    known = [each for each in used if each is not None]
    if len(known) < len(used):
        return None
    return max(known, key=lambda each: sum(getattr(each, n) != getattr(asked, n) for n in names))


def _joined(parts: Sequence[Any], pad: int = 0, name: str = "") -> Any:
    """Return as one what several processes hold of their own rows: None where one has nothing; of what is no row's the first's."""
    first = parts[0]
    if any(part is None for part in parts):
        return None
    if isinstance(first, Tensor):
        return stacked(parts, name, pad if name.endswith("ids") else 0)
    if isinstance(first, list):
        return [row for part in parts for row in part]
    if isinstance(first, Mapping):
        shared = [key for key in first if all(key in part for part in parts)]
        return {key: [row for part in parts for row in part[key]] for key in shared}
    if not is_dataclass(first):
        return first
    values = {f.name: [getattr(part, f.name) for part in parts] for f in fields(first)}
    return replace(first, **{n: _joined(each, pad, n) for n, each in values.items()})  # type: ignore[type-var]


def _update(
    parts: Sequence[Update], numbers: Sequence[Sequence[int]], starts: Sequence[Sequence[int]]
) -> Update:
    """Return the first process' update, with the backward passes of all: those of the same time next to each other."""

    def share(micro: MicroBatch, rank: int) -> MicroBatch:
        """Return a process' backward pass as its share of the gradient, which is the mean over processes.

        Its rows may be those of another process, which has numbered them.
        """
        given, grads = micro.given, (micro.grad_logprobs, micro.grad_entropies)
        if given.rows is not None and micro.generation < len(starts):
            begins = torch.tensor([starts[micro.generation][rank], *starts[micro.generation]])
            given = replace(given, rows=begins[given.rows // APART] + given.rows % APART)
        by_logprob, by_entropy = (None if each is None else each / len(parts) for each in grads)
        return replace(
            micro,
            given=given,
            weights=numbers[rank][micro.weights],
            process=rank,
            grad_logprobs=by_logprob,
            grad_entropies=by_entropy,
        )

    together = zip_longest(*(each.micro_batches for each in parts))
    micros = [
        share(micro, rank)
        for step in together
        for rank, micro in enumerate(step)
        if micro is not None
    ]
    return replace(parts[0], micro_batches=micros)
