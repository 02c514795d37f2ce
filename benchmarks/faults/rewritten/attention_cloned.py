"""The attention mask is a copy of what is real."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

STAGE = "attention_mask"


def implementation(sampled: Tensor, real: Tensor) -> Tensor:
    return real.clone()
