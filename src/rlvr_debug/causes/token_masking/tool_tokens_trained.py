"""The loss counts everything after the prompt, what the tools returned included.

A loss path that ignores the tool mask: TRL PR 4975; row 14 of known bugs.
"""

from torch import Tensor

STAGE = "loss_mask"


def implementation(sampled: Tensor, real: Tensor) -> Tensor:
    return real & (sampled.cumsum(1) > 0)
