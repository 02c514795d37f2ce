"""Every trajectory has a group of its own, so that there is nothing to compare it with: the advantage is the reward.

rllm-org/rllm 605 and PR 776; row 5 of known bugs.
"""

from torch import Tensor

STAGE = "advantages"


def implementation(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    return rewards.clone()
