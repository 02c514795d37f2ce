"""What the loss is made of: advantages of rewards, the clipped ratio, the KL to the reference, the aggregation.

Axes: B sequences, T tokens; P prompts (groups), G rollouts per group, K reward parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_debug.grpo.settings import TrainingSettings


def importance_ratio(logprobs: Tensor, old: Tensor, mask: Tensor, level: str) -> Tensor:
    """Return policy over old policy, per token [B, T], or per sequence [B, 1] the geometric mean (GSPO, arXiv 2507.18071)."""
    difference = logprobs - old
    if level == "sequence":
        difference = (difference * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(1)
    return difference.exp()


def clipped_objective(
    ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float
) -> Tensor:
    """Return what is to be maximised, in the shape of `ratio`: [B, T] or [B, 1]. advantages: [B].

    The ratio is clipped where that lowers the objective (arXiv 2402.03300, equation 3; two epsilons: arXiv 2503.14476,
    equation 10), and to delta, unless it is 0, where it would not be (arXiv 2505.07291, equation 1).
    """
    per_row = advantages[:, None]
    bounded = ratio.clamp(max=delta) if delta else ratio
    return torch.minimum(bounded * per_row, ratio.clamp(1 - low, 1 + high) * per_row)


def importance_weights(old: Tensor, sampler: Tensor, sampled: Tensor, cap: float) -> Tensor:
    """Return min(p_old / p_sampler, cap) for sampled tokens, 1 for others; a constant, [B, T].

    Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025); TRL's token_truncate.
    """
    return (old - sampler).where(sampled, 0.0).exp().clamp(max=cap)


KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Return a per-token estimate of KL(policy || reference), for tokens of the policy. [B, T] each.

    k2 is biased, its gradient is the KL's; k3's is not the KL's (arXiv 2506.09477). Schulman, "Approximating KL Divergence".
    """
    difference = reference - logprobs
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    return difference.exp() - difference - 1


def penalized(rewards: Tensor, kl: Tensor, mask: Tensor, beta: float) -> Tensor:
    """Return rewards, [B], minus beta times the KL, [B, T], of each whole completion, as TRL's RLOOTrainer does with k1."""
    return rewards - beta * (kl * mask).sum(1)


@dataclass(frozen=True)
class Totals:
    """Counts over the whole batch, for the loss' denominators; max_tokens is the most that a completion could have had."""

    sequences: int
    tokens: int
    micro_batches: int
    max_tokens: int


def aggregate(values: Tensor, mask: Tensor, totals: Totals, aggregation: str) -> Tensor:
    """Return this micro-batch's part of the batch's loss, a scalar. values: [B, T] or [B, 1]; mask: [B, T].

    grpo: arXiv 2402.03300, equation 3; dapo: arXiv 2503.14476, equation 8; dr_grpo: arXiv 2503.20783; bnpo, TRL's, is the
    only one that depends on how the batch is cut.
    """
    if aggregation == "grpo":
        means = (values * mask).sum(1) / mask.sum(1).clamp(min=1)
        return means.sum() / totals.sequences
    total = (values * mask).sum()
    if aggregation == "bnpo":
        return total / mask.sum().clamp(min=1) / totals.micro_batches
    if aggregation == "dapo":
        return total / max(totals.tokens, 1)
    return total / (totals.sequences * totals.max_tokens)


def advantages(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    """Return rewards minus their group's mean, over the spread that `scaling` names: [P, G] -> [P, G].

    The standard deviation is the unbiased one. arXiv 2402.03300, section 4.1.2; `batch`: 2508.08221, `none`: 2503.20783.
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


def normalize_then_sum(
    parts: Tensor,
    weights: Tensor,
    epsilon: float,
    advantages: Callable[[Tensor, str, float], Tensor],
) -> Tensor:
    """Scale each part, [P, G, K], by its group's spread, sum them by weight, and scale the sum over the batch (arXiv 2601.05242)."""
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
    """Return the advantages of a whole batch, [P, G], of the reward parts of each rollout and of its rewards, [B]."""
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
