"""Every trajectory has a group of its own, so that there is nothing to compare it with: the advantage is the reward.

rllm-org/rllm 605 and PR 776; row 5 of known bugs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "advantages"


def implementation(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    return rewards.clone()
