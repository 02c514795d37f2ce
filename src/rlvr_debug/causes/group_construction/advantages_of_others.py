"""Each sequence is trained with the advantage of another one: the batch is read in the wrong order.

tenstorrent/tt-metal 46412; row 7 of known bugs.
"""

from torch import Tensor

STAGE = "assign"


def implementation(advantages: Tensor) -> Tensor:
    return advantages.T.flatten()
