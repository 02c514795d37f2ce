"""The reference is not what training began with, but a model that knows less: a reference without the SFT adapter.

TRL 3194; row 34 of known bugs. That model gives each token the square root of its probability, times 0.1.
"""

import math

from torch import Tensor

from rlvr_debug.grpo.objective import kl_estimate

STAGE = "kl"


def implementation(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    return kl_estimate(logprobs, reference / 2 + math.log(0.1), estimator)
