"""Metrics of log-probabilities: the trainer's against the sampler's, the old policy's and the reference's, and the
gradient of the loss with respect to them, of which the weights' is the product with the model's Jacobian.

All are over the tokens that were sampled, in the right formula, whatever the trainer's stages compute.
Axes: B sequences, T tokens, N sampled tokens, P groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr_debug.grpo.loss import Experience, Loss, policy_loss
from rlvr_debug.grpo.objective import KL_ESTIMATORS, importance_ratio, kl_estimate
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.metrics.rollouts import mean, quantiles


def sampler_metrics(trainer: Tensor, sampler: Tensor) -> dict[str, float]:
    """Compare log-probabilities of the same sampled tokens, [N] each; `entropy` is estimated from these tokens alone."""
    gap = trainer - sampler
    size = gap.abs()
    ratio = gap.double().exp()
    difference, weight = "sampling/sampling_logp_difference", "sampling/importance_sampling_ratio"
    average, largest = float(size.mean()), float(size.max())
    return {
        "entropy": -float(sampler.mean()),
        f"{difference}/mean": average,
        f"{difference}/max": largest,
        "sampler_gap/mean": float(gap.mean()),
        "sampler_gap/mean_abs": average,
        "sampler_gap/max_abs": largest,
        **quantiles("sampler_gap/abs", size, (50, 90, 99)),
        "sampler_gap/kl": float(kl_estimate(sampler.double(), trainer.double(), "k3").mean()),
        f"{weight}/mean": float(ratio.mean()),
        **quantiles(weight, ratio, (0, 1, 50, 99, 100)),
        f"{weight}/outside_10_percent": float(((ratio - 1).abs() > 0.1).double().mean()),
    }


def kl_metrics(trainer: Tensor, reference: Tensor, estimator: str) -> dict[str, float]:
    """Return the KL of policy from reference, before the update. [N] each; estimator: the one trained with."""
    trained_with = kl_estimate(trainer, reference, estimator)
    return {
        "kl": float(trained_with.mean()),
        "kl/max": float(trained_with.max()),
        **quantiles("kl", trained_with, (50, 99)),
        **{f"kl/{k}": float(kl_estimate(trainer, reference, k).mean()) for k in KL_ESTIMATORS},
    }


def ratio_metrics(last: Tensor, old: Tensor) -> dict[str, float]:
    """Return quantiles of the policy at the batch's last update over that before its first. [N] each."""
    return quantiles("ratio", (last - old).double().exp(), (0, 1, 50, 99, 100))


def clip_metrics(
    passes: Sequence[Tensor],
    old: Tensor,
    sampled: Tensor,
    advantages: Tensor,
    clip: tuple[float, float],
    level: str,
) -> dict[str, float]:
    """Return the share of sampled tokens (at level `sequence`, of sequences) whose ratio was clipped, over all passes.

    passes, one an optimizer step, old, sampled: [B, T]; advantages: [B]; clip: lower and upper epsilon.
    """
    per_row = advantages[:, None]
    rows = []
    for logprobs in passes:
        mask = sampled.to(logprobs.dtype)
        ratio = importance_ratio(logprobs, old, mask, level)
        weight = mask if level == "token" else torch.ones_like(ratio)
        low = ((ratio < 1 - clip[0]) & (per_row < 0)) * weight
        high = ((ratio > 1 + clip[1]) & (per_row > 0)) * weight
        counts = weight.sum(1)
        rows.append(
            {
                "clip_ratio/low_mean": float(low.sum() / counts.sum()),
                "clip_ratio/low_min": float((low.sum(1) / counts).min()),
                "clip_ratio/high_mean": float(high.sum() / counts.sum()),
                "clip_ratio/high_max": float((high.sum(1) / counts).max()),
                "clip_ratio/region_mean": float((low + high).sum() / counts.sum()),
            }
        )
    return {name: mean([row[name] for row in rows]) for name in rows[0]}


TINY_STD = 0.05


@dataclass(frozen=True)
class LossTerm:
    """A term of the loss, and its gradient with respect to the log-probabilities, [B, T]."""

    value: float
    gradient: Tensor


def loss_terms(
    logprobs: Tensor,
    experience: Experience,
    settings: TrainingSettings,
    stages: Stages,
    loss_of: Loss = policy_loss,
) -> dict[str, LossTerm]:
    """Return the policy term and, where KL is in the loss, what the KL adds. logprobs: [B, T]."""
    leaf = logprobs.detach().requires_grad_()
    micro_batches = torch.arange(len(leaf)).tensor_split(experience.totals.micro_batches)

    def term(held: Experience) -> LossTerm:
        shares = [
            loss_of(leaf[rows], held.rows(rows, leaf.shape[1]), settings, stages)
            for rows in micro_batches
        ]
        loss = torch.stack(shares).sum()
        gradient = torch.zeros_like(leaf)
        if loss.requires_grad:
            [gradient] = torch.autograd.grad(loss, leaf, materialize_grads=True)
        gradient[:, 0] = 0.0  # nothing comes before the first token that could predict it
        return LossTerm(float(loss.detach()), gradient)

    policy = term(replace(experience, reference=None))
    if experience.reference is None:
        return {"policy": policy}
    both = term(experience)
    kl = LossTerm(both.value - policy.value, both.gradient - policy.gradient)
    return {"policy": policy, "kl": kl}


def gradient_metrics(terms: dict[str, LossTerm], group_std: Tensor) -> dict[str, float]:
    """Return each term's value and norm, and the policy term's share of groups whose rewards spread below TINY_STD."""
    squared = terms["policy"].gradient.double().square().view(len(group_std), -1).sum(1)
    total = float(squared.sum())
    share = float(squared[group_std < TINY_STD].sum()) / total if total else None
    return {
        **{f"loss/{name}": term.value for name, term in terms.items()},
        "logprob_grad_norm": float(_whole(terms).norm()),
        **{f"logprob_grad_norm/{n}": float(term.gradient.norm()) for n, term in terms.items()},
        **({} if share is None else {"logprob_grad_norm/tiny_std_share": share}),
    }


def gradient_error(terms: dict[str, LossTerm], right: dict[str, LossTerm]) -> dict[str, float]:
    """Return the norm of the difference over that of the right gradient, and nothing where that is 0."""
    norm = float(_whole(right).norm())
    if not norm:
        return {}
    return {"logprob_grad_norm/error": float((_whole(terms) - _whole(right)).norm()) / norm}


def _whole(terms: dict[str, LossTerm]) -> Tensor:
    return torch.stack([term.gradient for term in terms.values()]).sum(0)
