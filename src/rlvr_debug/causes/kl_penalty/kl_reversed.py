"""The KL term has policy and reference the wrong way round: k3 of KL(reference || policy), on the policy's tokens.

The formula that the original report tried beside the right one: 961.858 off where that is 0.012 off. None of known bugs.
"""

from torch import Tensor

from rlvr_debug.grpo.objective import kl_estimate

STAGE = "kl"


def implementation(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    return kl_estimate(reference, logprobs, estimator)
