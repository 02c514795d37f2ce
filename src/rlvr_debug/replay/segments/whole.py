"""processes, effect: whether those that train together do, and whether anything can be learned at all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Literal

import torch

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import TOGETHER, Gap, Instance, Segment, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Generation, Record
from rlvr_debug.replay.rollouts import alike_groups
from rlvr_debug.replay.variants import knobs_of

_Apart = Literal[
    "settings differ",
    "weights differ",
    "gradients differ",
    "the optimizer's states differ",
    "the random states are the same",
    "rows are the same",
    "without rows or updates",
]
_Still = Literal[
    "no weight is trainable",
    "the learning rate is set to 0",
    "no weight changes in an update",
    "the loss counts no token",
    "every advantage is 0",
    "all rollouts of a group are the same",
]

# --- processes


def _processes(record: Record, _: Network) -> Iterator[Instance]:
    """processes: those that train together hold the same policy and the same settings, and each has rows of its own."""
    if not record.processes:
        return
    first, *others = record.processes
    for rank, other in enumerate(others, 1):
        pairs = (
            (f.name, getattr(other.settings, f.name), getattr(record.settings, f.name))
            for f in fields(record.settings)
            if other.settings is not None
        )
        names = ", ".join(
            f"{n} {own!r} and {common!r}" for n, own, common in pairs if own != common
        )
        said = f"settings of process {rank} differ from those of process 0: {names}"
        yield _apart("the beginning", "settings differ", bool(names), said)
        held = (first.weights[:1], other.weights[:1])
        yield from _same("the beginning", "weights differ", *held, rank)
    for number, generation in enumerate(record.generations):
        yield from _drawn(record, number, generation)
    for number, update in enumerate(record.updates):
        where, here, after = f"update {number + 1}", slice(number, number + 1), number + 1
        without = _missing(record, [micro.process for micro in update.micro_batches])
        said = f"process {without} has no backward pass"
        yield _apart(where, "without rows or updates", bool(without), said)
        for rank, other in enumerate(others, 1):
            held = (first.weights[after : after + 1], other.weights[after : after + 1])
            states = (first.states[here], other.states[here])
            yield from _same(
                where, "gradients differ", first.gradients[here], other.gradients[here], rank
            )
            yield from _same(where, "weights differ", *held, rank)
            yield from _same(where, "the optimizer's states differ", *states, rank)


def _apart(where: str, what: _Apart, wrong: bool, said: str) -> Instance:
    return Instance(where, partial(_compare_apart, [what] * wrong), said)


def _compare_apart(found: Sequence[_Apart], *, wrong: _Apart | None = None) -> Gap:
    return different(wrong not in found if wrong else len(found))


def _missing(record: Record, processes: Sequence[int]) -> str:
    return ", ".join(str(n) for n in range(record.size) if n not in processes)


def _same(
    where: str,
    what: _Apart,
    one: Sequence[Mapping[str, str]],
    other: Sequence[Mapping[str, str]],
    rank: int,
) -> Iterator[Instance]:
    """Yield whether what process 0 and another held has the same digests. what: the sentence where it has not."""
    if one and other:
        names = one[0].keys() | other[0].keys()
        off = sorted(name for name in names if one[0].get(name) != other[0].get(name))
        said = (
            f"{what} between process 0 and process {rank}: {len(off)} of {len(names)} tensors "
            f"({', '.join(off[:3])})"
        )
        yield _apart(where, what, bool(off), said)


def _drawn(record: Record, number: int, generation: Generation) -> Iterator[Instance]:
    """Yield whether each process has rows, of its own, and draws tokens of its own."""
    where = f"generation {number + 1}"
    if without := _missing(record, generation.processes):
        said = f"process {without} has no rows"
        yield _apart(where, "without rows or updates", True, said)
        return
    if not generation.rows:
        return
    pairs = [*zip(generation.processes, map(str, generation.rows), strict=True)]
    own = [Counter(row for process, row in pairs if process == n) for n in range(record.size)]
    # a group may be spread over processes; more of one row than a group is are copies
    size = record.settings.group_size
    copies = [
        str(n)
        for n in range(1, record.size)
        if own[n] == own[0] and any((own[0] + own[n])[row] > size for row in own[0])
    ]
    enough = record.settings.data_rows >= len(pairs) // size
    said = f"process {', '.join(copies)} has the rows of process 0, and the data have others"
    yield _apart(where, "rows are the same", bool(copies) and enough, said)
    states = [p.random[number] for p in record.processes if number < len(p.random)]
    sampled = any(call.used is not None and call.used.drawn for call in generation.calls)
    if len(states) == record.size and sampled:
        ranks = range(1, record.size)
        alike = [str(n) for n in ranks if states[n] == states[0] and own[n] & own[0]]
        said = (
            f"process {', '.join(alike)} draws tokens with the random numbers of process 0, and both have "
            "rollouts of the same rows"
        )
        yield _apart(where, "the random states are the same", bool(alike), said)


PROCESSES = Segment("processes", _processes, knobs_of(_compare_apart), of=TOGETHER, trains=True)

# --- effect


def _effect(record: Record, _: Network) -> Iterator[Instance]:
    """effect: all may be as it is set, and still nothing can be learned."""
    batches = [g.batch for g in record.generations if g.batch is not None]
    advantages = [b.advantages for b in batches if b.advantages.numel()]
    masks = [b.loss_mask for b in batches if b.loss_mask.numel()]
    stepped = any(update.optimizer for update in record.updates)
    if not (record.weights or advantages or masks or stepped):
        raise NotSeen("nothing was seen that training has an effect by")
    # where an optimizer was seen, its step says more
    still = [u.before == u.after for u in record.updates if not u.optimizer]
    moves = len(record.weights) > 1 or not still or not all(still)
    nothing = bool(advantages) and not any(each.any() for each in advantages)
    groups = [alike_groups(each, record.settings) for each in record.generations]
    alike = nothing and bool(groups) and all(each and all(each) for each in groups)
    found: dict[_Still, bool] = {
        "no weight is trainable": bool(record.weights) and not record.trainable,
        "the learning rate is set to 0": stepped and record.settings.learning_rate == 0,
        "no weight changes in an update": bool(record.weights) and not moves,
        # that every reply was cut and is left out, as was asked for, is a consequence (limits)
        "the loss counts no token": bool(masks)
        and not any(mask.any() for mask in masks)
        and not record.settings.mask_truncated_completions,
        "every advantage is 0": nothing and (alike or not _one_reward(record)),
        "all rollouts of a group are the same": alike,
    }
    wrong = [text for text, is_so in found.items() if is_so]
    yield Instance("all of the record", partial(_compare_effect, wrong), "; ".join(wrong))


def _one_reward(record: Record) -> bool:
    """Return whether every rollout has the same rewards.

    A few steps do not tell whether it is the function that always says so, or the task that the model never solves: that
    is a consequence (contrast) and no deviation.
    """
    rewards = [each.rewards for each in record.generations if each.rewards is not None]
    if len(rewards) < len(record.generations) or not rewards:
        return False
    found = torch.cat(rewards).nan_to_num(nan=math.inf)
    return bool((found == found[:1]).all())


def _compare_effect(wrong: list[_Still], *, of: _Still | None = None) -> Gap:
    return different(of not in wrong if of else len(wrong))


EFFECT = Segment("effect", _effect, knobs_of(_compare_effect), trains=True)
