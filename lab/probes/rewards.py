"""Do rewards and advantages tell rollouts of one prompt apart, as they should?

Axes: P prompts (groups), G rollouts per group, B = P x G rollouts.
"""

from __future__ import annotations

import math

import torch

from lab.probes.base import Measurement, Subject, measurement
from lab.probes.first_update import advantages_of, case_batch, trained_scores
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.metrics.rewards import group_metrics, part_metrics

__all__ = ["advantage_scale", "group_integrity", "reward_audit"]

_STD = 0.1
_SCORE = 1e-6
_MEAN = 1e-3
_SMALL_SPREAD = 0.05
_SHARE = 0.5
_ROUNDING = 1e-5


def reward_audit(subject: Subject) -> Measurement:
    """Is there contrast in the groups' rewards, and are they what the environment says?

    Of the rewards that are trained on; parts that are only recorded are left out.
    """
    environment, rollouts = subject.environment, subject.rollouts
    scores, rewards = trained_scores(subject)
    by_group = rewards.view(-1, subject.settings.group_size)
    right = torch.tensor([r.parts[environment.success] >= 1 for r in rollouts])
    spread = group_metrics(by_group, right.view_as(by_group))
    parts = {name: [score[name] for score in scores] for name in environment.weights}
    correlated = {
        f"correlation_{name.removeprefix('reward_correlation/reward/')}": value
        for name, value in part_metrics(parts, rewards.tolist()).items()
        if name.startswith("reward_correlation/reward/")
    }
    own = torch.tensor(
        [environment.reward(r.row, environment.score(r.row, r.transcript)) for r in rollouts]
    )
    within, wrong = spread["reward_std/within_groups"], (rewards - own).abs() > _SCORE
    return measurement(
        "reward-audit",
        {
            "reward": spread["reward"],
            "std_within_groups": within,
            "std_of_all": spread["reward_std"],
            "share_of_dead_groups": spread["frac_reward_zero_std"],
            "constant_parts": sum(min(values) == max(values) for values in parts.values()),
            **correlated,
            "share_of_rewards_that_are_not_the_environments": float(wrong.float().mean()),
        },
        within >= _STD and not wrong.any(),
        std=_STD,
    )


def group_integrity(subject: Subject) -> Measurement:
    """Is each group of one prompt, and does each sequence get its own advantage?"""
    size = subject.settings.group_size
    scores, rewards = trained_scores(subject)
    advantages = advantages_of(subject, scores, rewards)
    assigned = subject.stages.assign(advantages).view(-1, size)
    # equal advantages hide a wrong order, and numbers in order do not
    marks = torch.arange(float(len(rewards)))
    moved = float((subject.stages.assign(marks.view(-1, size)) != marks).float().mean())
    rollouts = subject.rollouts
    groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
    mixed = sum(len({(r.row.id, *r.segments[0].ids) for r in group}) > 1 for group in groups)
    ids = {group[0].row.id for group in groups}
    by_group = rewards.view(-1, size)
    mean = float(assigned.mean(1).abs().max())
    return measurement(
        "group-integrity",
        {
            "groups": len(groups),
            "groups_of_several_prompts": mixed,
            "groups_of_a_prompt_that_another_has": len(groups) - len(ids),
            "largest_group_mean_of_advantages": mean,
            "share_with_the_advantage_of_another": moved,
            "share_of_dead_groups": float((by_group.amax(1) == by_group.amin(1)).float().mean()),
            "share_of_duplicate_rollouts": 1
            - sum(len({tuple(r.ids) for r in group}) for group in groups) / len(rollouts),
        },
        not mixed and len(ids) == len(groups) and mean < _MEAN and not moved,
        mean=_MEAN,
    )


def advantage_scale(subject: Subject) -> Measurement:
    """Do groups of nearly equal rewards dominate the gradient, and do advantages keep their bound?

    Squared gradient norm of each group alone, from the case's own stages.
    """
    settings = subject.settings
    size = settings.group_size
    scores, flat = trained_scores(subject)
    rewards, advantages = flat.view(-1, size), advantages_of(subject, scores, flat)
    batch = case_batch(subject)
    norms = []
    for group, row in enumerate(advantages):
        rows = batch.rows(torch.arange(group * size, (group + 1) * size))
        logprobs = token_logprobs(
            subject.model, rows.ids, rows.attention, rows.loss, settings.temperature
        )
        objective = (logprobs * rows.loss * row[:, None]).sum()
        gradients = torch.autograd.grad(objective, subject.policy.trained)
        norms.append(sum(float(g.square().sum()) for g in gradients))
    spread = rewards.std(1)
    small = sum(norm for norm, s in zip(norms, spread, strict=True) if s < _SMALL_SPREAD)
    share = small / sum(norms) if sum(norms) else 0.0
    # one reward apart from equal ones comes closest to the bound, whatever the rollouts earned; most
    # levels are not exact in binary, so that the spread of equal rewards may not come out as 0
    apart = (torch.arange(10.0)[:, None] / 10).repeat(1, size)
    apart[:, 0] = 1.0
    parts = [dict.fromkeys(subject.environment.weights, r) for r in apart.flatten().tolist()]
    one_apart = advantages_of(subject, list(parts), apart.flatten())
    largest, possible = float(advantages.abs().max()), _possible(subject, len(flat))
    largest_apart, possible_apart = float(one_apart.abs().max()), _possible(subject, apart.numel())
    return measurement(
        "advantage-scale",
        {
            "gradient_share_of_small_spread": share,
            "groups_of_small_spread": float((spread < _SMALL_SPREAD).float().mean()),
            "largest_advantage": largest,
            "largest_possible": possible,
            "largest_advantage_of_one_apart": largest_apart,
            "largest_possible_of_one_apart": possible_apart,
        },
        share < _SHARE
        and largest <= possible * (1 + _ROUNDING)
        and largest_apart <= possible_apart * (1 + _ROUNDING),
        spread=_SMALL_SPREAD,
        share=_SHARE,
        possible=possible,
    )


def _possible(subject: Subject, rewards: int) -> float:
    """The largest advantage that any rewards can have, this many in all."""
    settings = subject.settings
    size = settings.group_size
    # scaled by the batch's spread, a group may stand out among all the rewards and not its own only
    over_batch = (
        settings.scale_rewards == "batch"
        or settings.multi_objective_aggregation == "normalize_then_sum"
    )
    compared = rewards if over_batch else size
    return math.sqrt((size - 1) * (compared - 1) / size)
