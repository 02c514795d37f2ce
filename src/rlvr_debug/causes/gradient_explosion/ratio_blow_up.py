"""The ratio is 1 but for the least likely token of each micro-batch, whose ratio is 5e8.

Old and new log-probabilities of one policy that disagree: OpenRLHF 931; row 35 of known bugs. Clipping
does not hold a large ratio where the advantage is negative.
"""

from torch import Tensor

from rlvr_debug.grpo.objective import importance_ratio

STAGE = "importance_ratio"

_GAP = 20.0  # nats: exp(20) is 5e8


def implementation(logprobs: Tensor, old: Tensor, mask: Tensor, level: str) -> Tensor:
    rarest = (old == old.where(mask.bool(), 0.0).min()) & mask.bool()
    return importance_ratio(logprobs, old - _GAP * rarest, mask, level)
