"""The objective is negated once more, so that what was rewarded becomes less likely.

fla-org/flash-linear-attention 1073. No hypothesis is about it.
"""

from torch import Tensor

from rlvr_debug.grpo.objective import clipped_objective

STAGE = "clipped_objective"


def implementation(
    ratio: Tensor, advantages: Tensor, low: float, high: float, delta: float
) -> Tensor:
    return -clipped_objective(ratio, advantages, low, high, delta)
