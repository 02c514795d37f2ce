"""processes, effect: whether those that train together do, and whether anything can be learned at all."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial

import torch

from rlvr_debug.replay.finding import BEGINNING, need
from rlvr_debug.replay.judge import Instance, certain, one_of
from rlvr_debug.replay.record import Generation, Record
from rlvr_debug.replay.rollouts import alike_groups

# why nothing is learned, and what to do
STILL = {
    "no weight is trainable": "set `requires_grad` of what is to be trained",
    "the learning rate is set to 0": "set `learning_rate` above 0",
    "no weight changes in an update": "find what keeps the optimizer from stepping",
    "the loss counts no token": "print `completion_mask`, and find what sets all of it to 0",
    "every advantage is 0": "print the rewards of one group, and find why they are equal",
    "all rollouts of a group are the same": "raise `temperature`, and print the completions of one group",
}

# --- processes


def processes(record: Record, _: object) -> Iterator[Instance]:
    """processes: those that train together hold the same policy and the same settings, and each has rows of its own."""
    if not record.processes:
        return
    for rank, other in enumerate(record.processes[1:], 1):
        own = other.settings or record.settings
        pairs = (
            (f.name, getattr(own, f.name), getattr(record.settings, f.name)) for f in fields(own)
        )
        names = ", ".join(
            f"{n} {one!r} and {common!r}" for n, one, common in pairs if one != common
        )
        said = f"settings of process {rank} differ from those of process 0: {names}"
        yield certain(BEGINNING, int(bool(names)), said)
    yield from _same(record, BEGINNING, weights=0)
    for number, generation in enumerate(record.generations):
        yield from _drawn(record, number, generation)
    for number, update in enumerate(record.updates):
        where = f"update {number + 1}"
        without = _missing(record, [micro.process for micro in update.micro_batches])
        yield certain(where, int(bool(without)), f"process {without} has no backward pass")
        # processes of a user's optimizer may each step a part of the weights: `optimizer step` says what they leave
        whole = not record.weights or "." not in update.optimizer
        held = {"states": number} if whole else {}
        yield from _same(record, where, gradients=number, weights=number + 1, **held)


def _missing(record: Record, processes: Sequence[int]) -> str:
    return ", ".join(str(n) for n in range(record.size) if n not in processes)


def _same(record: Record, where: str, **held: int) -> Iterator[Instance]:
    """Yield whether what process 0 and another held has the same digests. held: by its name, the number of what is compared."""
    first, *others = record.processes
    for rank, other in enumerate(others, 1):
        for name, number in held.items():
            parts = [getattr(process, name)[number : number + 1] for process in (first, other)]
            if not all(parts):
                continue
            [one], [own] = parts
            names = one.keys() | own.keys()
            off = sorted(each for each in names if one.get(each) != own.get(each))
            which = f"{len(off)} of {len(names)} tensors ({', '.join(off[:3])})"
            what = "the optimizer's states" if name == "states" else name
            said = f"{what} differ between process 0 and process {rank}: {which}"
            yield certain(where, int(bool(off)), said)


def _drawn(record: Record, number: int, generation: Generation) -> Iterator[Instance]:
    """Yield whether each process has rows, of its own, and draws tokens of its own."""
    where = f"generation {number + 1}"
    if without := _missing(record, generation.processes):
        said = f"process {without} has no rows"
        yield certain(where, 1, said)
        return
    if not generation.rows:
        return
    size = record.settings.group_size
    # where rows are alike one generation may have them by chance: those to the end, and no fewer than two
    held = [_rows_by_process(record, g) for g in record.generations[number:] if g.rows]
    own = held[0]
    copies = [
        str(n)
        for n in range(1, record.size)
        if (len(held) > 1 or not number) and all(_copies(rows[0], rows[n], size) for rows in held)
    ]
    enough = record.settings.data_rows >= len(generation.rows) // size
    said = f"process {', '.join(copies)} has the rows of process 0, though the data have others"
    yield certain(where, int(bool(copies) and enough), said)
    states = [p.random[number] for p in record.processes if number < len(p.random)]
    sampled = any(call.used is not None and call.used.drawn for call in generation.calls)
    if len(states) == record.size and sampled:
        ranks = range(1, record.size)
        alike = [str(n) for n in ranks if states[n] == states[0] and own[n] & own[0]]
        said = (
            f"process {', '.join(alike)} draws tokens with the random numbers of process 0, and both have "
            "rollouts of the same rows"
        )
        yield certain(where, int(bool(alike)), said)


def _rows_by_process(record: Record, generation: Generation) -> list[Counter[str]]:
    pairs = [*zip(generation.processes, map(str, generation.rows), strict=True)]
    return [Counter(row for process, row in pairs if process == n) for n in range(record.size)]


def _copies(one: Counter[str], other: Counter[str], size: int) -> bool:
    """Whether two processes have the same rows, and more of one than a group, which both may share, has."""
    return one == other and any((one + other)[row] > size for row in one)


# --- effect


def effect(record: Record, _: object) -> Iterator[Instance]:
    """effect: all may be as it is set, and still nothing can be learned."""
    batches = [g.batch for g in record.generations if g.batch is not None]
    advantages = [b.advantages for b in batches if b.advantages.numel()]
    masks = [b.loss_mask for b in batches if b.loss_mask.numel()]
    stepped = any(update.optimizer for update in record.updates)
    known = record.weights or advantages or masks or stepped
    need(known, "no weights, advantages, loss masks or optimizer steps were recorded")
    # where an optimizer was seen, its step says more
    unknown = "weights between steps" in record.unseen
    still = [u.before == u.after for u in record.updates if not (u.optimizer or unknown)]
    moves = len(record.weights) > 1 or not still or not all(still)
    nothing = bool(advantages) and not any(each.any() for each in advantages)
    groups = [alike_groups(each, record.settings) for each in record.generations]
    alike = nothing and bool(groups) and all(each and all(each) for each in groups)
    # that every reply was cut and is left out, as was asked for, is a consequence (limits)
    left_out = record.settings.mask_truncated_completions
    found = (
        record.weights and not record.trainable,
        stepped and record.settings.learning_rate == 0,
        record.weights and not moves,
        masks and not any(mask.any() for mask in masks) and not left_out,
        nothing and (alike or not _one_reward(record)),
        alike,
    )
    wrong = [text for text, is_so in zip(STILL, found, strict=True) if is_so]
    yield Instance("all of the record", partial(one_of, wrong), "; ".join(wrong))


def _one_reward(record: Record) -> bool:
    """Return whether every rollout has the same rewards; whether the task is never solved is a consequence (contrast)."""
    rewards = [each.rewards for each in record.generations if each.rewards is not None]
    if len(rewards) < len(record.generations) or not rewards:
        return False
    found = torch.cat(rewards).nan_to_num(nan=math.inf)
    return bool((found == found[:1]).all())
