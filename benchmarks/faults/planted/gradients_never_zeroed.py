"""Gradients are never zeroed: each step is made on the sum of all before it.

A leak of gradients from one accumulation to the next, as in TrenTorch PR 187. No hypothesis is about it.
"""

from torch.optim import Optimizer

STAGE = "optimizer_step"


def implementation(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        sums = group.setdefault("leaked", [0.0] * len(group["params"]))
        for place, weight in enumerate(group["params"]):
            if weight.grad is not None:
                sums[place] = sums[place] + weight.grad
                weight.grad = sums[place].clone()
    optimizer.step()
