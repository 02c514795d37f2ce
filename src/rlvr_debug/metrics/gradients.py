"""What reaches the model's output: the gradient of the loss with respect to log-probabilities.

The gradient of the weights is this one times the model's Jacobian. A share of its square is therefore what
a group of rollouts, or a term of the loss, asks for, and it costs no pass through the model. The loss is
the one that the trainer's stages compute, at the batch's first optimizer step.

Axes: B sequences, T tokens, P groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr_debug.grpo.loss import Loss, Targets, policy_loss
from rlvr_debug.grpo.objective import Totals
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages

TINY_STD = 0.05


@dataclass(frozen=True)
class LossTerm:
    """A term of the loss, and its gradient with respect to the log-probabilities, [B, T]."""

    value: float
    gradient: Tensor


def loss_terms(
    logprobs: Tensor,
    targets: Targets,
    totals: Totals,
    settings: TrainingSettings,
    stages: Stages,
    loss_of: Loss = policy_loss,
) -> dict[str, LossTerm]:
    """Return the policy term and, where KL is in the loss, what the KL adds. logprobs: [B, T]."""

    leaf = logprobs.detach().requires_grad_()
    micro_batches = torch.arange(len(leaf)).tensor_split(totals.micro_batches)

    def term(held: Targets) -> LossTerm:
        shares = [
            loss_of(leaf[rows], held.rows(rows, leaf.shape[1]), totals, settings, stages)
            for rows in micro_batches
        ]
        loss = torch.stack(shares).sum()
        gradient = torch.zeros_like(leaf)
        if loss.requires_grad:
            [gradient] = torch.autograd.grad(loss, leaf)
        gradient[:, 0] = 0.0  # nothing comes before the first token that could predict it
        return LossTerm(float(loss.detach()), gradient)

    policy = term(replace(targets, reference=None))
    if targets.reference is None:
        return {"policy": policy}
    both = term(targets)
    kl = LossTerm(both.value - policy.value, both.gradient - policy.gradient)
    return {"policy": policy, "kl": kl}


def gradient_metrics(terms: dict[str, LossTerm], group_std: Tensor) -> dict[str, float]:
    """Return each term's value and norm. group_std: of the environment's rewards, [P].

    The rows of a gradient are group after group. `tiny_std_share` is the share of the policy term's
    squared norm that groups with a standard deviation below TINY_STD have; it is left out where the
    gradient is 0.
    """
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
