"""Advantages whose mean is a sum over the count: another rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "advantages"


def implementation(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    centred = rewards - rewards.sum(1, keepdim=True) / rewards.shape[1]
    if scaling == "none":
        return centred
    spread = rewards.std() if scaling == "batch" else rewards.std(1, keepdim=True)
    return centred / (spread + epsilon)
