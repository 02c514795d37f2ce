"""KL's gradient: whether the KL term, as it is set, pulls the policy towards the reference.

It is taken on tables of logits over a few tokens, where an expectation is a sum and not an estimate, and on policy, as
the first update is. Axes: S states, V tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr_debug.replay.consequences.base import Consequence, consequence
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments.loss_formula import kl_estimate
from rlvr_debug.replay.settings import Settings

__all__ = ["NAME", "kl_gradient"]

NAME = "KL's gradient"
_STATES, _TOKENS = 64, 16
_NEAR, _FAR = 0.1, 1.0  # standard deviation of the difference in logits
_COSINE = 0.9
_ERROR = 0.5


def kl_gradient(record: Record) -> Consequence | None:
    """Measure the KL term's expected gradient against that of KL(policy || reference); None at beta 0."""
    settings = record.settings
    if not settings.kl_beta:
        return None
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(_STATES, _TOKENS, generator=generator, dtype=torch.float64)

    logits = noise()
    measured = {"beta": settings.kl_beta}
    for name, distance in (("near", _NEAR), ("far", _FAR)):
        policy = (logits + distance * noise()).log_softmax(-1)
        reference = logits.log_softmax(-1)
        term = _to_logits(policy.exp() * _by_token(settings, policy, reference), policy)
        right = _to_logits(policy.exp() * (policy - reference), policy)
        measured[f"cosine_{name}"] = _cosine(term, right)
        measured[f"relative_error_{name}"] = float((term - right).norm() / right.norm())
    passed = measured["cosine_near"] > _COSINE and measured["relative_error_near"] < _ERROR
    said = (
        f"the KL term holds nothing: {settings.kl_estimator} in the {settings.kl_place} has a gradient of cosine "
        f"{measured['cosine_near']:.2g} to the KL's"
    )
    return consequence(NAME, measured, passed, said)


def _by_token(settings: Settings, policy: Tensor, reference: Tensor) -> Tensor:
    """Return what the term adds to the gradient by each token's log-probability, at beta 1, [S, V].

    In the reward it is a score function: the penalty, as what is to be made small.
    """
    if settings.kl_place == "reward":
        return kl_estimate(settings.kl_estimator, policy, reference)
    held = policy.detach()
    leaf = policy.clone().requires_grad_()
    term = kl_estimate(settings.kl_estimator, leaf, reference)
    if settings.use_bias_correction_kl:
        term = (leaf - held).exp() * term
    [gradient] = torch.autograd.grad(term.sum(), leaf)
    return gradient


def _to_logits(weights: Tensor, policy: Tensor) -> Tensor:
    """Return the gradient of sum(weights * log p) with respect to the logits, weights being constants, [S, V]."""
    return weights - weights.sum(-1, keepdim=True) * policy.exp()


def _cosine(found: Tensor, right: Tensor) -> float:
    """Return the cosine of two gradients; that of one that is 0, to rounding, is 0."""
    if float(found.norm()) < 1e-9 * float(right.norm()):
        return 0.0
    return float((found * right).sum() / (found.norm() * right.norm()))
