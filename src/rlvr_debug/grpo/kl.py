"""How far the policy is from the reference: per-token estimates, and their place.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from torch import Tensor

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
