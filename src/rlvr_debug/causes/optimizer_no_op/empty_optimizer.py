"""The optimizer steps and has nothing to step on: no weight moves, though there is a gradient.

TRL 6700 and PR 6701, a frozen adapter and an optimizer without parameters; row 26 of known bugs.
"""

from torch.optim import Optimizer

STAGE = "optimizer_step"


def implementation(optimizer: Optimizer) -> None:
    held = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = []
    optimizer.step()
    for group, parameters in zip(optimizer.param_groups, held, strict=True):
        group["params"] = parameters
