"""The last token of each reply, which ends the turn, is left out of the loss.

RAGEN 59; row 20 of known bugs. When to stop is not learned.
"""

from torch import Tensor

STAGE = "loss_mask"


def implementation(sampled: Tensor, real: Tensor) -> Tensor:
    return sampled & sampled.roll(-1, dims=1)
