"""The loss mask by De Morgan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "loss_mask"


def implementation(sampled: Tensor, real: Tensor) -> Tensor:
    return ~(~sampled | ~real)
