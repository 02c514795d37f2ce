"""Advantages, as the trainer's own stage made them.

Axes: P prompts (groups), G rollouts per group.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["advantage_metrics"]


def advantage_metrics(advantages: Tensor, right: Tensor | None) -> dict[str, float]:
    """advantages: [P, G]; right: those that the environment's rewards make, where this is known."""
    wrong = {}
    if right is not None:
        wrong["advantages/error_abs_max"] = float((advantages - right).abs().max())
    return {
        "advantages/abs_max": float(advantages.abs().max()),
        "advantages/abs_mean": float(advantages.abs().mean()),
        "advantages/group_mean_abs_max": float(advantages.mean(1).abs().max()),
        **wrong,
    }
