"""Takes the KL term on exact policies: tables of logits over a few tokens, where an expectation is a sum.

No sample and no model is used: what is left of an error is the formula's. States are independent of each
other.

Axes: S states, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.objective import Totals, penalized
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.metrics.logprobs import loss_terms


def random_policies(distances: Sequence[float], states: int = 64, tokens: int = 16) -> list[Tensor]:
    """Return log-probabilities [S, V], in float64, the same at each call: a random policy, then policies
    whose logits differ from its by noise of these standard deviations."""
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(states, tokens, generator=generator, dtype=torch.float64)

    first = noise()
    return [
        first.log_softmax(-1),
        *((first + distance * noise()).log_softmax(-1) for distance in distances),
    ]


def kl_gradient(policy: Tensor, reference: Tensor) -> Tensor:
    """Return the gradient of KL(policy || reference) with respect to the policy's logits, [S, V]."""
    return to_logits(policy.exp() * (policy - reference), policy)


def to_logits(weights: Tensor, policy: Tensor) -> Tensor:
    """Return the gradient of sum(weights * log p) with respect to the logits, [S, V]; weights are constants."""
    return weights - weights.sum(-1, keepdim=True) * policy.exp()


def term_gradient(
    policy: Tensor,
    old: Tensor,
    reference: Tensor,
    settings: TrainingSettings,
    stages: Stages,
    *,
    weighted: bool = False,
) -> Tensor:
    """Return what the trainer's KL term adds to the gradient of the logits, in expectation over tokens of
    `old`: [S, V], as are the log-probabilities.

    The term is taken at beta 1, from the trainer's own loss. In the reward it is a score function: minus
    the penalty is the advantage of its token. weighted: there, by the ratio of policy to old (without a
    clip), as PPO's objective does; in the loss use_bias_correction_kl says so.
    """
    count = policy.numel()
    settings = replace(settings, kl_beta=1.0, clip=1.0, epsilon_high=float("inf"), delta=0.0)

    def column(values: Tensor) -> Tensor:
        """Return one sequence per token; a first token, which is not trained, predicts it."""
        return torch.stack([torch.zeros_like(values), values], -1).view(count, 2)

    mask = column(torch.ones_like(policy)).bool()
    held = Targets(policy.new_zeros(count), mask, mask, column(old), column(reference), column(old))
    if settings.kl_place == "reward":
        penalty = stages.kl(old, reference, settings.kl_estimator).view(count, 1)
        gains = penalized(penalty.new_zeros(count), penalty, torch.ones_like(penalty), 1.0)
        held = replace(held, advantages=gains, reference=None, old=held.old if weighted else None)
    totals = Totals(sequences=count, tokens=count, micro_batches=1, max_tokens=1)
    found = loss_terms(column(policy), held, totals, settings, stages)
    term = found["policy" if settings.kl_place == "reward" else "kl"]
    # of the mean over sequences, and by log-probability of the token
    by_token = count * term.gradient[:, 1].view_as(policy)
    return to_logits(old.exp() * by_token, policy)


@dataclass(frozen=True)
class Agreement:
    """How far a gradient agrees with the right one: 1 and 0 where they are equal."""

    cosine: float
    relative_error: float


def agreement(found: Tensor, right: Tensor) -> Agreement:
    """Return the agreement of two gradients. The cosine of one that is 0, to rounding, is 0."""
    scale = float(found.norm() * right.norm())
    none = float(found.norm()) < 1e-9 * float(right.norm())
    cosine = 0.0 if none else float((found * right).sum()) / scale
    return Agreement(cosine, float((found - right).norm() / right.norm()))
