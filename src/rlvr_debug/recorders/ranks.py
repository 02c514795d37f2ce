"""One record of what several processes recorded, each of its own rows: that of one process with the union of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.recorders.pieces import Cut
from rlvr_debug.replay.adapters import plain_weights
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import (
    Batch,
    Call,
    Generation,
    MicroBatch,
    Process,
    Record,
    RewardCall,
    Update,
)
from rlvr_debug.replay.rollouts import rows_of
from rlvr_debug.replay.settings import Sampling, Settings

_Held = TypeVar("_Held")
_LEFT = ("prompt_ids", "prompt_mask")  # padded there


def digest(*tensors: Tensor) -> str:
    """Return a word that is the same where the numbers are, to the bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        numbers: Any = flat.view(torch.uint8).numpy()
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(numbers)
    return found.hexdigest()[:16]


def part_of(record: Record, random: Sequence[str], cut: Cut, *, main: bool) -> Record:
    """Return what a process gives to the record of all: its pieces of what is cut up, and of all else digests.

    random: digests of the state that it drew tokens with, by generation. The first process keeps all that it has.
    """
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

    def pieces(tensors: Mapping[str, _Held] | None, shapes: Mapping[str, Any]) -> Any:
        return tensors and {name: held for name, held in tensors.items() if name in shapes}

    return replace(
        record,
        processes=[process],
        tokenizer=None,
        weights=[pieces(weights, cut.weights) for weights in record.weights if cut.weights],
        reference=pieces(record.reference, cut.weights) or None,
        saved=None,
        updates=[
            replace(
                update,
                gradients=pieces(update.gradients, cut.moved),
                clipped=pieces(update.clipped, cut.moved),
                state=pieces(update.state, cut.moved),
                state_after=pieces(update.state_after, cut.moved),
            )
            for update in updates
        ],
    )


def merged(parts: Sequence[Record], cut: Cut | None = None) -> Record:
    """Return one record of what each process recorded, in their order: the first one's, with the rows of all."""
    cut = cut or Cut()
    first = _pieced(parts, cut)
    parts = [first, *parts[1:]]
    held = first.processes[0].weights
    numbers = [
        [*range(len(held))] if cut.weights else _numbers(held, part.processes[0].weights)
        for part in parts
    ]
    generations = [
        _generation(first.settings, each, numbers)
        for each in zip(*(part.generations for part in parts), strict=False)
    ]
    starts = [_starts(each) for each in zip(*(part.generations for part in parts), strict=False)]
    updates = [
        _update(each, numbers, starts)
        for each in zip(*(part.updates for part in parts), strict=False)
    ]
    unseen = {name: why for part in reversed(parts) for name, why in part.unseen.items()}
    counts = {len(part.updates) for part in parts}
    notes = [note for part in parts for note in part.notes]
    if len(counts) > 1:
        notes.append(
            f"the processes made {sorted(counts)} updates; as many as all made are checked"
        )
    return replace(
        first,
        generations=generations,
        updates=updates,
        notes=[*dict.fromkeys(notes)],
        unseen=unseen,
        processes=[_process(first, part) for part in parts],
    )


def _pieced(parts: Sequence[Record], cut: Cut) -> Record:
    """Return the first process' record, with the pieces of all put together."""
    first = parts[0]
    if len({len(part.weights) for part in parts}) > 1 and cut.weights:
        raise InputError(
            "the processes' pieces of the weights were changed at different times: they cannot be put together"
        )
    known: dict[int, Tensor] = {}  # frozen weights are the same tensor in every state

    def whole(name: str, pieces: Sequence[Tensor], shape: torch.Size | None) -> Tensor:
        key = id(pieces[0])
        if shape is None:
            return pieces[0]
        if key not in known:
            flat = torch.cat([piece.flatten() for piece in pieces])
            known[key] = flat if name in cut.elements else flat[: shape.numel()].view(shape)
        return known[key]

    def of_all(
        tensors: Sequence[Mapping[str, Tensor] | None], shapes: Mapping[str, torch.Size]
    ) -> dict[str, Tensor] | None:
        if tensors[0] is None:
            return None
        names = dict.fromkeys(name for each in tensors for name in each or ())
        return {
            n: whole(n, [each[n] for each in tensors if each and n in each], shapes.get(n))
            for n in names
        }

    def states(held: Sequence[Mapping[str, Mapping[str, Tensor]] | None]) -> Any:
        names = dict.fromkeys(name for each in held for name in each or ())
        found = {}
        for name in names:
            own = [each[name] for each in held if each and name in each]
            found[name] = {
                key: whole(name, [state[key] for state in own], cut.moved.get(name))
                if own[0][key].dim()
                else own[0][key]
                for key in own[0]
            }
        return None if held[0] is None else found

    weights: list[Mapping[str, Tensor]] = [
        of_all(each, cut.weights) or {}
        for each in zip(*(part.weights for part in parts if part.weights), strict=True)
    ]
    return replace(
        first,
        elements=cut.elements or first.elements,
        weights=weights,
        reference=of_all([part.reference for part in parts], cut.weights)
        if cut.adapter is None
        else plain_weights(weights[0], cut.adapter),
        updates=[
            replace(
                each[0],
                gradients=of_all([update.gradients for update in each], cut.moved),
                clipped=of_all([update.clipped for update in each], cut.moved),
                state=states([update.state for update in each]),
                state_after=states([update.state_after for update in each]) or {},
                norms=_norms([update.norms for update in each]) if cut.moved else each[0].norms,
            )
            for each in zip(*(part.updates for part in parts), strict=False)
        ],
    )


def _norms(norms: Sequence[tuple[float, ...] | None]) -> tuple[float, ...] | None:
    """Return the norms of tensors whose pieces have these."""
    known = [each for each in norms if each is not None]
    return tuple(math.hypot(*each) for each in zip(*known, strict=True)) if known else None


def _process(first: Record, part: Record) -> Process:
    """Return what a process held, its weights by update and its settings where they are its own."""
    own = part.processes[0]
    updates = part.updates
    order = [updates[0].before, *(update.after for update in updates)] if updates else [0]
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
    """Return where each process' rows begin among those of all."""
    counts = [_count(each) for each in generations]
    return [sum(counts[:rank]) for rank in range(len(counts))]


def _numbered(numbers: Sequence[int], weights: int | None) -> int | None:
    """Return the number that weights of a part have in the whole record; None where they are not known."""
    return None if weights is None else numbers[weights]


def _generation(
    settings: Settings, parts: Sequence[Generation], numbers: Sequence[Sequence[int]]
) -> Generation:
    counts, starts = [_count(each) for each in parts], _starts(parts)
    messages = [each.messages for each in parts]
    batches = [each.batch for each in parts]
    rewards = [_own_rewards(each.rewards, counts, rank) for rank, each in enumerate(parts)]
    return Generation(
        rows=[row for each in parts for row in each.rows],
        weights=_numbered(numbers[0], parts[0].weights),
        calls=_calls(settings.sampling, parts, starts, numbers),
        messages=None if None in messages else [m for own in messages for m in own or ()],
        reward_calls=_reward_calls(parts),
        rewards=_stacked(rewards),
        batch=_batch(batches, settings.pad_id),
        processes=[rank for rank, count in enumerate(counts) for _ in range(count)],
    )


def _own_rewards(rewards: Tensor | None, counts: Sequence[int], rank: int) -> Tensor | None:
    """Return the rewards of a process' own rows: it may hold those of all."""
    if rewards is None or len(rewards) == counts[rank]:
        return rewards
    start = sum(counts[:rank])
    return rewards[start : start + counts[rank]] if len(rewards) == sum(counts) else None


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
    most = max(len(each.calls) for each in parts)
    turns = [
        [
            (start, own[turn], each.calls[turn], number)
            for each, own, start, number in zip(parts, rows, starts, numbers, strict=True)
            if turn < len(each.calls)
        ]
        for turn in range(most)
    ]
    found = []
    for turn in turns:
        calls = [call for _, _, call, _ in turn]
        known = all(call.logprobs or not call.outputs for call in calls)
        found.append(
            Call(
                prompts=[ids for call in calls for ids in call.prompts],
                outputs=[ids for call in calls for ids in call.outputs],
                logprobs=[values for call in calls for values in call.logprobs] if known else [],
                used=_used(asked, [call.used for call in calls]),
                weights=_numbered(turn[0][3], calls[0].weights),
                rows=[start + row for start, own, _, _ in turn for row in own],
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


def _reward_calls(parts: Sequence[Generation]) -> list[RewardCall]:
    found = []
    for calls in zip(*(each.reward_calls for each in parts), strict=False):
        names = set.intersection(*(set(call.columns) for call in calls))
        if len({call.index for call in calls}) > 1:
            continue
        again = {
            name: [value for call in calls for value in getattr(call, name)]
            if all(getattr(call, name) is not None for call in calls)
            else None
            for name in ("again", "backwards", "alone", "evaluated")
        }
        columns = {name: [v for call in calls for v in call.columns[name]] for name in names}
        returned = [value for call in calls for value in call.returned]
        found.append(replace(calls[0], columns=columns, returned=returned, **again))
    return found


def _batch(batches: Sequence[Batch | None], pad: int) -> Batch | None:
    """Return the batches one below the other, padded to the same width."""
    if None in batches:
        return None
    found = {
        name: _stacked(
            [getattr(each, name) for each in batches],
            left=name in _LEFT,
            value=pad if name.endswith("ids") else 0,
        )
        for name in (field.name for field in fields(Batch))
    }
    return Batch(**found)  # type: ignore[arg-type] # only what may be None is


def _stacked(tensors: Sequence[Tensor | None], left: bool = False, value: int = 0) -> Tensor | None:
    known = [tensor for tensor in tensors if tensor is not None]
    if len(known) < len(tensors):
        return None
    if known[0].dim() > 1:
        width = max(tensor.shape[1] for tensor in known)
        gaps = [width - tensor.shape[1] for tensor in known]
        known = [
            torch.nn.functional.pad(tensor, (gap, 0) if left else (0, gap), value=value)
            for tensor, gap in zip(known, gaps, strict=True)
        ]
    return torch.cat(known)


def _update(
    parts: Sequence[Update], numbers: Sequence[Sequence[int]], starts: Sequence[Sequence[int]]
) -> Update:
    """Return the first process' update, with the backward passes of all: those of the same time next to each other."""
    steps = max(len(each.micro_batches) for each in parts)
    micros = [
        _micro(each.micro_batches[step], rank, len(parts), numbers[rank], starts)
        for step in range(steps)
        for rank, each in enumerate(parts)
        if step < len(each.micro_batches)
    ]
    return replace(parts[0], micro_batches=micros)


def _micro(
    micro: MicroBatch,
    rank: int,
    size: int,
    numbers: Sequence[int],
    starts: Sequence[Sequence[int]],
) -> MicroBatch:
    """Return a process' backward pass as its share of the gradient, which is the mean over processes."""
    given = micro.given
    if given.rows is not None and micro.generation < len(starts):
        given = replace(given, rows=given.rows + starts[micro.generation][rank])
    grads = (micro.grad_logprobs, micro.grad_entropies)
    by_logprob, by_entropy = (None if each is None else each / size for each in grads)
    return replace(
        micro,
        given=given,
        weights=numbers[micro.weights],
        process=rank,
        grad_logprobs=by_logprob,
        grad_entropies=by_entropy,
    )
