"""Advantages, as the trainer's own stage made them.

Axes: P prompts (groups), G rollouts per group.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["advantage_metrics"]


def advantage_metrics(advantages: Tensor) -> dict[str, float]:
    """advantages: [P, G]."""
    return {
        "advantages/abs_max": float(advantages.abs().max()),
        "advantages/abs_mean": float(advantages.abs().mean()),
        "advantages/group_mean_abs_max": float(advantages.mean(1).abs().max()),
    }
