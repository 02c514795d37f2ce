"""What is saved, and so evaluated, is the model without what training added to it.

verl 5325, unsloth 2009 and prime-rl PR 1456; row 27 of known bugs. Without an adapter, the reference's
weights are saved.
"""

from dataclasses import replace

from torch import Tensor

from rlvr_debug.grpo.policy import Policy

STAGE = "saved_weights"


def implementation(policy: Policy) -> dict[str, Tensor]:
    return replace(policy, model=policy.reference or policy.model, adapter=None).weights()
