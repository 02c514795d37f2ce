"""What the loss is made of: the ratio to the policy that sampled and its clipping, the KL to the reference, the aggregation.

Axes: B sequences of a micro-batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_debug.grpo.settings import TrainingSettings

LEVELS = ("token", "sequence")


def importance_ratio(logprobs: Tensor, old: Tensor, mask: Tensor, level: str) -> Tensor:
    """Return policy over old policy, per token [B, T] or per sequence [B, 1].

    logprobs, old, mask: [B, T]. That of a sequence is the geometric mean over the tokens of `mask` (GSPO,
    arXiv 2507.18071).
    """
    difference = logprobs - old
    if level == "sequence":
        difference = (difference * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(1)
    return difference.exp()


def clipped_objective(
    ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float
) -> Tensor:
    """Return what is to be maximised, in the shape of `ratio`: [B, T] or [B, 1]. advantages: [B].

    The ratio is clipped to [1 - low, 1 + high] where that lowers the objective (arXiv 2402.03300,
    equation 3; two epsilons: arXiv 2503.14476, equation 10), and to delta, unless it is 0, where it
    would not be (arXiv 2505.07291, equation 1).
    """
    per_row = advantages[:, None]
    bounded = ratio.clamp(max=delta) if delta else ratio
    return torch.minimum(bounded * per_row, ratio.clamp(1 - low, 1 + high) * per_row)


def importance_weights(old: Tensor, sampler: Tensor, sampled: Tensor, cap: float) -> Tensor:
    """Return min(p_old / p_sampler, cap) for sampled tokens, 1 for others; a constant, [B, T].

    old: the trainer's log-probabilities before the update; sampler: those of sampling. They should be
    equal and, in two implementations or precisions, are not. Yao et al., "Your Efficient RL
    Framework Secretly Brings You Off-Policy RL Training" (2025); TRL's vLLM correction in its mode
    token_truncate.
    """
    return (old - sampler).where(sampled, 0.0).exp().clamp(max=cap)


KL_ESTIMATORS = ("k1", "k2", "k3")
KL_PLACES = ("loss", "reward")


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Return a per-token estimate of KL(policy || reference), for tokens of the policy. [B, T] each.

    With d = log p_ref - log p: k1 = -d, unbiased; k2 = d^2 / 2, biased, its gradient is the KL's;
    k3 = exp(d) - d - 1, unbiased and never negative, its gradient is not the KL's (arXiv 2506.09477).
    Schulman, "Approximating KL Divergence" (2020). TRL's GRPO has k3 alone.
    """
    difference = reference - logprobs
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return difference.square() / 2
    return difference.exp() - difference - 1


def penalized(rewards: Tensor, kl: Tensor, mask: Tensor, beta: float) -> Tensor:
    """Return rewards minus beta times the KL of each whole completion, [B].

    rewards: [B]; kl, mask: [B, T]. TRL's RLOOTrainer, with k1.
    """
    return rewards - beta * (kl * mask).sum(1)


AGGREGATIONS = ("grpo", "bnpo", "dr_grpo", "dapo")


@dataclass(frozen=True)
class Totals:
    """Counts over the whole batch, all its micro-batches together, for the loss' denominators.

    `tokens` counts those in the loss; `max_tokens` is the most that a completion could have had.
    """

    sequences: int
    tokens: int
    micro_batches: int
    max_tokens: int


def aggregate(values: Tensor, mask: Tensor, totals: Totals, aggregation: str) -> Tensor:
    """Return this micro-batch's part of the batch's loss, a scalar. values: [B, T] or [B, 1]; mask: [B, T].

    grpo: mean over each sequence's tokens, then over sequences (arXiv 2402.03300, equation 3).
    dapo: mean over the batch's tokens (arXiv 2503.14476, equation 8).
    dr_grpo: sum over the most tokens that there could be (arXiv 2503.20783).
    bnpo: mean over the micro-batch's tokens, then over micro-batches (TRL): the only one that depends
    on how the batch is cut.
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
