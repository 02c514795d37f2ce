"""effect: all may be as it is set, and still nothing can be learned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.rollouts import rollouts
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "effect"
_Wrong = Literal[
    "no weight is trainable",
    "the learning rate is set to 0",
    "no weight changes in an update",
    "the loss counts no token",
    "every advantage is 0",
    "all rollouts of a group are the same",
]


def instances(record: Record, _: Network) -> Iterator[Instance]:
    batches = [g.batch for g in record.generations if g.batch is not None]
    advantages = [b.advantages for b in batches if b.advantages.numel()]
    masks = [b.loss_mask for b in batches if b.loss_mask.numel()]
    stepped = any(update.optimizer for update in record.updates)
    if not (record.weights or advantages or masks or stepped):
        raise NotSeen("nothing was seen that training has an effect by")
    # where an optimizer was seen, its step says more
    still = [u.before == u.after for u in record.updates if not u.optimizer]
    moves = len(record.weights) > 1 or not still or not all(still)
    found: dict[_Wrong, bool] = {
        "no weight is trainable": bool(record.weights) and not record.trainable,
        "the learning rate is set to 0": stepped and record.settings.learning_rate == 0,
        "no weight changes in an update": bool(record.weights) and not moves,
        # that every reply was cut and is left out, as was asked for, is a consequence (limits)
        "the loss counts no token": bool(masks)
        and not any(mask.any() for mask in masks)
        and not record.settings.mask_truncated_completions,
    }
    nothing = bool(advantages) and not any(each.any() for each in advantages)
    alike = nothing and _alike(record)
    found["every advantage is 0"] = nothing and (alike or not _one_reward(record))
    found["all rollouts of a group are the same"] = alike
    wrong = [text for text, is_so in found.items() if is_so]
    compare = partial(_compare, wrong)
    yield Instance("all of the record", compare, partial(str, "; ".join(wrong)))


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


def _alike(record: Record) -> bool:
    """Return whether in every group all rollouts are the same, token by token."""
    size = record.settings.group_size
    for generation in record.generations:
        try:
            found = [tuple(each.ids) for each in rollouts(generation, record.settings)]
        except NotSeen:
            return False
        if any(len(set(found[n : n + size])) > 1 for n in range(0, len(found), size)):
            return False
    return bool(record.generations)


def _compare(wrong: list[_Wrong], *, of: _Wrong | None = None) -> Gap:
    return different(of not in wrong if of else len(wrong))


KNOBS = knobs_of(_compare)
