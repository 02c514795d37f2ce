"""Faults of advantages, from rewards that are right."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faults, faulty
from benchmarks.check.faults.ways import batched

_EPSILON = 1e-4


def _from_rewards(case, formula):
    """The case whose advantages are `formula` of the rewards, a row for each group."""

    class Trainer(case.trainer):
        def _calculate_rewards(self, *args):
            self.table = super()._calculate_rewards(*args)
            return self.table

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            rewards = (self.table * self.reward_weights).nansum(1).view(-1, self.num_generations)
            output["advantages"] = formula(rewards).reshape(-1)
            return output

    return replace(case, trainer=Trainer)


_changed = batched("advantages")


def _centred(rewards):
    return rewards - rewards.mean(1, keepdim=True)


def _spread(rewards):
    return rewards.std(1, keepdim=True) + _EPSILON


@faulty(_from_rewards)
def leave_one_out_residue(rewards):
    others = rewards.shape[1] - 1
    mean = (rewards.sum(1, keepdim=True) - rewards) / others
    squares = rewards.square()
    mean_square = (squares.sum(1, keepdim=True) - squares) / others
    std = (mean_square - mean.square()).clamp(min=0).sqrt()
    return ((rewards - mean) / std).where(std > 0, rewards - mean)


def _by_columns(trainer, advantages, batch):
    return advantages.view(-1, trainer.num_generations).T.reshape(-1)


faults(
    _changed,
    advantages_of_others=_by_columns,
    normalised_twice=lambda trainer, advantages, batch: (
        (advantages - advantages.mean()) / (advantages.std() * 2 + _EPSILON)
    ),
    advantages_clipped=lambda trainer, advantages, batch: advantages.clamp(-1, 1),
    negative_advantages_dropped=lambda trainer, advantages, batch: advantages.clamp(min=0),
    advantages_in_bfloat16=lambda trainer, advantages, batch: advantages.bfloat16().float(),
)

faults(
    _from_rewards,
    first_rollout_is_the_baseline=lambda rewards: rewards - rewards[:, :1],
    group_of_one=lambda rewards: rewards,
    not_divided_by_the_spread=_centred,
    spread_of_the_batch=lambda rewards: _centred(rewards) / (rewards.std() + _EPSILON),
    mean_of_the_batch=lambda rewards: (rewards - rewards.mean()) / _spread(rewards),
    spread_with_all_degrees_of_freedom=lambda rewards: (
        _centred(rewards) / (rewards.std(1, correction=0, keepdim=True) + _EPSILON)
    ),
    epsilon_of_a_tenth=lambda rewards: _centred(rewards) / (rewards.std(1, keepdim=True) + 0.1),
    median_for_the_mean=lambda rewards: (
        (rewards - rewards.median(1, keepdim=True).values) / _spread(rewards)
    ),
    rejected_rows_move_the_baseline=lambda rewards: _centred(rewards) / _spread(rewards),
)


@faulty(_from_rewards)
def baseline_of_the_others(rewards):
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return (rewards - others) / _spread(rewards)


@faulty()
def baseline_of_steps_before(case: Case) -> Case:
    moving = []

    def formula(rewards):
        moving.append(rewards.mean())
        return (rewards - sum(moving) / len(moving)) / _spread(rewards)

    return _from_rewards(case, formula)


@faulty(_changed)
def advantages_by_length(trainer, advantages, batch):
    lengths = batch["completion_mask"].sum(1)
    return advantages * lengths / lengths.max()


@faulty(_changed)
def advantages_discounted(trainer, advantages, batch):
    left = batch["completion_mask"].flip(1).cumsum(1).flip(1) - 1
    return advantages[:, None] * 0.9 ** left.clamp(min=0)


@faulty()
def short_replies_and_advantages_of_others(case: Case) -> Case:
    def cut(trainer):
        trainer.generation_config.max_new_tokens //= 4

    return _changed(case, _by_columns).then(cut)
