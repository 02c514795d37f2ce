"""Rewards -> advantages.

Axes: P prompts (groups), G rollouts per group, K reward parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rlvr_debug.grpo.settings import TrainingSettings

SCALINGS = ("group", "batch", "none")


def advantages(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    """Return rewards minus their group's mean, over the spread that `scaling` names: [P, G] -> [P, G].

    The standard deviation is the unbiased one, so that an advantage scaled by its group's never exceeds
    (G - 1) / sqrt(G). arXiv 2402.03300, section 4.1.2; `batch` is arXiv 2508.08221, `none` arXiv
    2503.20783.
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    if scaling == "group":
        return centred / (rewards.std(1, keepdim=True) + epsilon)
    if scaling == "batch":
        return centred / (rewards.std() + epsilon)
    return centred


def assign(advantages: Tensor) -> Tensor:
    """Return the advantage of each sequence of the batch, group after group: [P, G] -> [P * G]."""
    return advantages.flatten()


MULTI_OBJECTIVE_AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")


def normalize_then_sum(
    parts: Tensor,
    weights: Tensor,
    epsilon: float,
    advantages: Callable[[Tensor, str, float], Tensor],
) -> Tensor:
    """Scale each part by its group's spread, sum them by weight, and scale the sum over the batch.

    parts: [P, G, K]; weights: [K]. Return [P, G]. GDPO, arXiv 2601.05242. The batch is scaled as one
    group.
    """
    scaled = [advantages(part, "group", epsilon) for part in parts.unbind(-1)]
    total = (torch.stack(scaled, -1) * weights).sum(-1)
    return advantages(total.view(1, -1), "group", epsilon).view_as(total)


def batch_advantages(
    scores: Sequence[Mapping[str, float]],
    rewards: Tensor,
    weights: Mapping[str, float],
    settings: TrainingSettings,
    advantages: Callable[[Tensor, str, float], Tensor],
) -> Tensor:
    """Return the advantages of a whole batch, [P, G], by its settings.

    scores: the reward parts of each rollout; rewards: [B].
    """
    shape = (-1, settings.group_size)
    if settings.multi_objective_aggregation == "normalize_then_sum":
        parts = torch.tensor([[s[name] for name in weights] for s in scores])
        return normalize_then_sum(
            parts.view(*shape, len(weights)),
            torch.tensor(list(weights.values())),
            settings.advantage_epsilon,
            advantages,
        )
    return advantages(rewards.view(shape), settings.scale_rewards, settings.advantage_epsilon)
