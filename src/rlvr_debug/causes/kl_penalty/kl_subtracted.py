"""The KL term has the wrong sign: the loss falls as the policy leaves the reference.

verl commit a65c9157; row 32 of known bugs.
"""

from torch import Tensor

from rlvr_debug.grpo.objective import kl_estimate

STAGE = "kl"


def implementation(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    return -kl_estimate(logprobs, reference, estimator)
