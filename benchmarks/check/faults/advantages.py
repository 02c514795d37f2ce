"""Faults of advantages, from rewards that are right."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty
from benchmarks.check.faults.ways import generated

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


def _changed(case, change):
    """The case whose advantages are `change` of the right ones and the batch."""
    name = "advantages"
    return generated(case, lambda trainer, b: {**b, name: change(trainer, b[name], b)})


def _centred(rewards):
    return rewards - rewards.mean(1, keepdim=True)


def _spread(rewards):
    return rewards.std(1, keepdim=True) + _EPSILON


@faulty(_from_rewards)
def leave_one_out_residue(rewards):
    """Advantages over the spread of the group's other rewards, where rounding leaves it above 0."""
    others = rewards.shape[1] - 1
    mean = (rewards.sum(1, keepdim=True) - rewards) / others
    squares = rewards.square()
    mean_square = (squares.sum(1, keepdim=True) - squares) / others
    std = (mean_square - mean.square()).clamp(min=0).sqrt()
    return ((rewards - mean) / std).where(std > 0, rewards - mean)


@faulty()
def first_rollout_is_the_baseline(case: Case) -> Case:
    """Mean and spread of a group are those of its first rollout alone."""
    return _from_rewards(case, lambda rewards: rewards - rewards[:, :1])


@faulty()
def group_of_one(case: Case) -> Case:
    """Every trajectory has a group of its own, so that the advantage is the reward."""
    return _from_rewards(case, lambda rewards: rewards)


def _by_columns(trainer, advantages, batch):
    return advantages.view(-1, trainer.num_generations).T.reshape(-1)


@faulty()
def advantages_of_others(case: Case) -> Case:
    """Each sequence is trained with the advantage of another one: the table is read by columns."""
    return _changed(case, _by_columns)


@faulty(_changed)
def normalised_twice(trainer, advantages, batch):
    """Advantages are normalised by group, and once more over the batch."""
    return (advantages - advantages.mean()) / (advantages.std() * 2 + _EPSILON)


@faulty(_from_rewards)
def spread_of_the_batch(rewards):
    """Advantages are divided by the spread of the batch, where that of the group was asked for."""
    return _centred(rewards) / (rewards.std() + _EPSILON)


@faulty(_from_rewards)
def mean_of_the_batch(rewards):
    """What is taken off is the mean of the batch, so that easy prompts are always good."""
    return (rewards - rewards.mean()) / _spread(rewards)


@faulty(_from_rewards)
def spread_with_all_degrees_of_freedom(rewards):
    """The spread is over n instead of n - 1."""
    return _centred(rewards) / (rewards.std(1, correction=0, keepdim=True) + _EPSILON)


@faulty(_from_rewards)
def epsilon_of_a_tenth(rewards):
    """What keeps a division from 0 is as large as the spread."""
    return _centred(rewards) / (rewards.std(1, keepdim=True) + 0.1)


@faulty()
def not_divided_by_the_spread(case: Case) -> Case:
    """Rewards are centred, and were to be divided by the group's spread."""
    return _from_rewards(case, _centred)


@faulty(_from_rewards)
def median_for_the_mean(rewards):
    """What is taken off is the group's median."""
    return (rewards - rewards.median(1, keepdim=True).values) / _spread(rewards)


@faulty(_from_rewards)
def baseline_of_the_others(rewards):
    """What is taken off is the mean of the group's other rewards, so that advantages are a third too large."""
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return (rewards - others) / _spread(rewards)


@faulty()
def baseline_of_steps_before(case: Case) -> Case:
    """The mean is a moving one over all steps."""
    moving = []

    def formula(rewards):
        moving.append(rewards.mean())
        return (rewards - sum(moving) / len(moving)) / _spread(rewards)

    return _from_rewards(case, formula)


@faulty(_changed)
def advantages_clipped(trainer, advantages, batch):
    """Advantages are cut to at most 1 either way, which nobody asked for."""
    return advantages.clamp(-1, 1)


@faulty(_changed)
def negative_advantages_dropped(trainer, advantages, batch):
    """Only what was better than its group is trained."""
    return advantages.clamp(min=0)


@faulty(_changed)
def advantages_in_bfloat16(trainer, advantages, batch):
    """Advantages are rounded to bfloat16 on their way."""
    return advantages.bfloat16().float()


@faulty(_changed)
def advantages_by_length(trainer, advantages, batch):
    """Advantages are multiplied by each reply's share of the longest."""
    lengths = batch["completion_mask"].sum(1)
    return advantages * lengths / lengths.max()


@faulty(_changed)
def advantages_discounted(trainer, advantages, batch):
    """Each token's advantage is discounted by its distance from the end of the reply."""
    left = batch["completion_mask"].flip(1).cumsum(1).flip(1) - 1
    return advantages[:, None] * 0.9 ** left.clamp(min=0)


@faulty(_from_rewards)
def rejected_rows_move_the_baseline(rewards):
    """A completion without a reward counts as one of 0 in its group's mean and spread."""
    return _centred(rewards) / _spread(rewards)


@faulty()
def short_replies_and_advantages_of_others(case: Case) -> Case:
    """Two faults, the first of which counts: replies are cut at a quarter, and advantages are those of others."""

    def cut(trainer):
        trainer.generation_config.max_new_tokens //= 4

    return _changed(case, _by_columns).then(cut)
