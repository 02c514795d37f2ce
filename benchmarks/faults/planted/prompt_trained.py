"""The prompt's mask is 1 where it should be 0: the prompt is trained like a reply.

prime-rl PR 540; row 19 of known bugs.
"""

from torch import Tensor

STAGE = "loss_mask"


def implementation(sampled: Tensor, real: Tensor) -> Tensor:
    return real
