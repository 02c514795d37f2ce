"""What loss and KL say together: the weight that the KL has in the loss. Several causes read it.

With one policy in a batch the policy's own term is 0 on average, so that what is left of the loss is the weight
times the KL.
"""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import late
from rlvr_debug.logs.log import Array, Log

# weights of the KL that somebody means: TRL's default is 0, DeepSeekMath's 0.04, verl's examples have 0.001
ORDINARY = 0.3
_SMALLEST = 1e-7  # nats: below, the ratio is one of roundings
_ALIKE = 2.5  # ratios within this factor of their median agree
_AGREE = 0.6  # of the rows
_FIRST_NORM = 10.0
_NOT_MEANT = 3.0  # a weight that nobody asks for where the policy moves
MOVES = 5e-3  # nats: a policy that the KL does not hold


def rows_of(log: Log) -> tuple[Array, Array]:
    """Return KL and loss of the rows that have both, and a KL that is more than rounding."""
    both = log.together("kl", "loss")
    both = both[np.abs(both[:, 0]) > _SMALLEST]
    return both[:, 0], both[:, 1]


def kl_weight(log: Log) -> float | None:
    """Return the weight that the KL has in the loss, None where rows do not agree on one."""
    kl, loss = rows_of(log)
    if len(kl) < 6:
        return None
    ratios = (loss / kl)[len(kl) // 3 :]
    middle = float(np.median(ratios))
    if middle == 0:
        return None
    alike = (ratios / middle >= 1 / _ALIKE) & (ratios / middle <= _ALIKE)
    return middle if alike.mean() >= _AGREE else None


def loss_is_large(log: Log, weight: float) -> bool:
    """Return whether all of the loss is too large, and not the weight of the KL in it.

    The gradient is large in the first row, where policy and reference are one and the KL adds nothing, and the policy
    moves under a weight that would hold it.
    """
    kl, _ = rows_of(log)
    norms = log.series("grad_norm")
    at_first = norms.size > 0 and float(norms[0]) >= _FIRST_NORM
    return at_first and weight > _NOT_MEANT and MOVES <= late(kl) < 1
