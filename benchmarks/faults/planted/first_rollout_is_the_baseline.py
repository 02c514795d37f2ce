"""Mean and spread of a group are those of its first rollout alone.

ServiceNow/PipelineRL PR 54; row 3 of known bugs. One value has no spread, so that nothing is divided by.
"""

from torch import Tensor

STAGE = "advantages"


def implementation(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    return rewards - rewards[:, :1]
