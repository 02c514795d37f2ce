"""The clipped objective, through its negation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "clipped_objective"


def implementation(
    ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float
) -> Tensor:
    from rlvr_debug.grpo.objective import clipped_objective

    negated = -clipped_objective(ratio, advantages, low, high, delta)
    return -negated
