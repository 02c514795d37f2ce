"""Weights are stored in bfloat16, which rounds small updates away.

workofart/ml-by-hand PR 85; row 41 of known bugs.
"""

import torch
from torch.optim import Optimizer

STAGE = "optimizer_step"


def implementation(optimizer: Optimizer) -> None:
    optimizer.step()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.copy_(weight.bfloat16())
