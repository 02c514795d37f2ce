"""Is there contrast in the groups' rewards, and are they what the environment says?

Axes: P prompts (groups), G rollouts per group, B = P x G rollouts.
"""

from __future__ import annotations

import torch

from rlvr_debug.diagnostics.rewards import group_metrics, part_metrics
from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.probes.first_update import trained_scores

__all__ = ["reward_audit"]

_STD = 0.1
_SCORE = 1e-6


def reward_audit(subject: Subject) -> Measurement:
    """Of the rewards that are trained on; parts that are only recorded are left out."""
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
    return Measurement(
        probe="reward-audit",
        measured={
            "reward": spread["reward"],
            "std_within_groups": within,
            "std_of_all": spread["reward_std"],
            "share_of_dead_groups": spread["frac_reward_zero_std"],
            "constant_parts": sum(min(values) == max(values) for values in parts.values()),
            **correlated,
            "share_of_rewards_that_are_not_the_environments": float(wrong.float().mean()),
        },
        bound=f"mean standard deviation within groups at least {_STD}; every reward the environment's",
        reason="only what differs within a group is learned from, as its mean is subtracted: a spread "
        f"between prompts is not counted. Rewards are in [0, 1]; {_STD} is the original criterion: one "
        "right answer in four groups of eight makes 0.09",
        passed=within >= _STD and not wrong.any(),
    )
