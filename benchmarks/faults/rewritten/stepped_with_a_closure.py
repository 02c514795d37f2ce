"""The optimizer steps with a closure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.optim import Optimizer

STAGE = "optimizer_step"


def implementation(optimizer: Optimizer) -> None:
    optimizer.step(lambda: 0.0)
