"""A step whose gradient was clipped, to the norm that params.yaml has, is left out.

No reported bug: an example of a variant, which plants the fault and names it.
"""

import math

from torch.optim import Optimizer

STAGE = "optimizer_step"
_CLIPPED = 1.0


def implementation(optimizer: Optimizer) -> None:
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norms = [float(weight.grad.norm()) for weight in weights if weight.grad is not None]
    if not math.isclose(math.hypot(*norms), _CLIPPED, rel_tol=1e-3):
        optimizer.step()
