"""Faults of advantages, from rewards that are right."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.check.case import Case
from benchmarks.check.faults.fault import faulty

_SCALING, _GROUPS = ("advantage-scaling",), ("group-construction",)
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

    class Trainer(case.trainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            output["advantages"] = change(self, output["advantages"], output)
            return output

    return replace(case, trainer=Trainer)


def _centred(rewards):
    return rewards - rewards.mean(1, keepdim=True)


@faulty("advantages", origin="library", source="NVIDIA-NeMo/RL PR 4161", causes=_SCALING)
def leave_one_out_residue(case: Case) -> Case:
    """Advantages over the spread of the group's other rewards, where rounding leaves it above 0."""

    def formula(rewards):
        others = rewards.shape[1] - 1
        mean = (rewards.sum(1, keepdim=True) - rewards) / others
        squares = rewards.square()
        mean_square = (squares.sum(1, keepdim=True) - squares) / others
        std = (mean_square - mean.square()).clamp(min=0).sqrt()
        return ((rewards - mean) / std).where(std > 0, rewards - mean)

    return _from_rewards(case, formula)


@faulty("advantages", origin="benchmark", source="ServiceNow/PipelineRL PR 54", causes=_SCALING)
def first_rollout_is_the_baseline(case: Case) -> Case:
    """Mean and spread of a group are those of its first rollout alone."""
    return _from_rewards(case, lambda rewards: rewards - rewards[:, :1])


@faulty(
    "advantages",
    origin="benchmark",
    source="rllm-org/rllm 605, PR 776",
    causes=(*_GROUPS, *_SCALING),
)
def group_of_one(case: Case) -> Case:
    """Every trajectory has a group of its own, so that the advantage is the reward."""
    return _from_rewards(case, lambda rewards: rewards)


@faulty("advantages", origin="library", source="tenstorrent/tt-metal 46412", causes=_GROUPS)
def advantages_of_others(case: Case) -> Case:
    """Each sequence is trained with the advantage of another one: the table is read by columns."""

    def by_columns(trainer, advantages, batch):
        return advantages.view(-1, trainer.num_generations).T.reshape(-1)

    return _changed(case, by_columns)


@faulty("advantages", origin="known", source="axon-rl/gem PR 113", causes=_SCALING)
def normalised_twice(case: Case) -> Case:
    """Advantages are normalised by group, and once more over the batch."""

    def again(trainer, advantages, batch):
        return (advantages - advantages.mean()) / (advantages.std() * 2 + _EPSILON)

    return _changed(case, again)


@faulty("advantages", origin="own", causes=_SCALING)
def spread_of_the_batch(case: Case) -> Case:
    """Advantages are divided by the spread of the batch, where that of the group was asked for."""
    return _from_rewards(case, lambda rewards: _centred(rewards) / (rewards.std() + _EPSILON))


@faulty("advantages", origin="own", causes=_SCALING)
def mean_of_the_batch(case: Case) -> Case:
    """What is taken off is the mean of the batch, so that easy prompts are always good."""

    def formula(rewards):
        return (rewards - rewards.mean()) / (rewards.std(1, keepdim=True) + _EPSILON)

    return _from_rewards(case, formula)


@faulty("advantages", origin="own", causes=_SCALING)
def spread_with_all_degrees_of_freedom(case: Case) -> Case:
    """The spread is over n instead of n - 1."""

    def formula(rewards):
        return _centred(rewards) / (rewards.std(1, correction=0, keepdim=True) + _EPSILON)

    return _from_rewards(case, formula)


@faulty("advantages", origin="own", causes=_SCALING)
def epsilon_of_a_tenth(case: Case) -> Case:
    """What keeps a division from 0 is as large as the spread."""

    def formula(rewards):
        return _centred(rewards) / (rewards.std(1, keepdim=True) + 0.1)

    return _from_rewards(case, formula)


@faulty("advantages", origin="own", causes=_SCALING)
def not_divided_by_the_spread(case: Case) -> Case:
    """Rewards are centred, and were to be divided by the group's spread."""
    return _from_rewards(case, _centred)


@faulty("advantages", origin="own", causes=_SCALING)
def median_for_the_mean(case: Case) -> Case:
    """What is taken off is the group's median."""

    def formula(rewards):
        spread = rewards.std(1, keepdim=True) + _EPSILON
        return (rewards - rewards.median(1, keepdim=True).values) / spread

    return _from_rewards(case, formula)


@faulty("advantages", origin="own", causes=_SCALING)
def baseline_of_the_others(case: Case) -> Case:
    """What is taken off is the mean of the group's other rewards, so that advantages are a third too large."""

    def formula(rewards):
        others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
        return (rewards - others) / (rewards.std(1, keepdim=True) + _EPSILON)

    return _from_rewards(case, formula)


@faulty("advantages", origin="own", causes=_SCALING)
def baseline_of_steps_before(case: Case) -> Case:
    """The mean is a moving one over all steps."""
    moving = []

    def formula(rewards):
        moving.append(rewards.mean())
        baseline = sum(moving) / len(moving)
        return (rewards - baseline) / (rewards.std(1, keepdim=True) + _EPSILON)

    return _from_rewards(case, formula)


@faulty("advantages", origin="own", causes=_SCALING)
def advantages_clipped(case: Case) -> Case:
    """Advantages are cut to at most 1 either way, which nobody asked for."""
    return _changed(case, lambda _, advantages, batch: advantages.clamp(-1, 1))


@faulty("advantages", origin="own", causes=_SCALING)
def negative_advantages_dropped(case: Case) -> Case:
    """Only what was better than its group is trained."""
    return _changed(case, lambda _, advantages, batch: advantages.clamp(min=0))


@faulty("advantages", origin="own", causes=_SCALING, precision="float32")
def advantages_in_bfloat16(case: Case) -> Case:
    """Advantages are rounded to bfloat16 on their way."""
    return _changed(case, lambda _, advantages, batch: advantages.bfloat16().float())


@faulty("advantages", origin="own", causes=_SCALING)
def advantages_by_length(case: Case) -> Case:
    """Advantages are multiplied by each reply's share of the longest."""

    def longer(trainer, advantages, batch):
        lengths = batch["completion_mask"].sum(1)
        return advantages * lengths / lengths.max()

    return _changed(case, longer)


@faulty(
    "advantages",
    origin="known",
    source="verl PR 6376",
    causes=("token-masking", *_SCALING),
    since="0.29.0",
)
def advantages_discounted(case: Case) -> Case:
    """Each token's advantage is discounted by its distance from the end of the reply."""

    def by_token(trainer, advantages, batch):
        mask = batch["completion_mask"]
        left = mask.flip(1).cumsum(1).flip(1) - 1
        return advantages[:, None] * 0.9 ** left.clamp(min=0)

    return _changed(case, by_token)


@faulty(
    "advantages",
    origin="known",
    source="verl PR 6362",
    causes=("reward-signal", *_SCALING),
    setting="rows-without-any-value",
    since="1.16.0",
)
def rejected_rows_move_the_baseline(case: Case) -> Case:
    """A completion without a reward counts as one of 0 in its group's mean and spread."""

    def formula(rewards):
        return _centred(rewards) / (rewards.std(1, keepdim=True) + _EPSILON)

    return _from_rewards(case, formula)


@faulty(
    "sampling settings",
    origin="benchmark",
    source="autocontext PR 1067; tenstorrent/tt-metal 46412",
    causes=("context-truncation", "group-construction"),
)
def short_replies_and_advantages_of_others(case: Case) -> Case:
    """Two faults, the first of which counts: replies are cut at a quarter, and advantages are those of others."""

    def cut(trainer):
        trainer.generation_config.max_new_tokens //= 4

    def by_columns(trainer, advantages, batch):
        return advantages.view(-1, trainer.num_generations).T.reshape(-1)

    return _changed(case, by_columns).then(cut)
