"""Decoupled weight decay that is not multiplied by the learning rate: all weights shrink by a twentieth a step."""

import torch

STAGE = "optimizer_step"

DECAY = 0.05


def implementation(optimizer):
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - DECAY)
    optimizer.step()
