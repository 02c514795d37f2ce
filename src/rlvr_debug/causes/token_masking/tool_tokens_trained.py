"""The loss counts everything after the prompt, what the tools returned included.

A loss path that ignores the tool mask: TRL PR 4975; row 14 of known bugs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "loss_mask"


def implementation(sampled: Tensor, real: Tensor) -> Tensor:
    return real & (sampled.cumsum(1) > 0)
