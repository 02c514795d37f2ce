"""The sampler takes the weights of the first update and no others: it wakes with those that it went to sleep with.

TRL 5312 and PR 5313; row 23 of known bugs. Log-probabilities part from the third step on.
"""

from rlvr_debug.grpo.policy import Policy
from rlvr_debug.sampling.base import PolicySampler

STAGE = "sync"


def implementation(policy: Policy, sampler: PolicySampler) -> None:
    if not hasattr(sampler, "asleep"):
        sampler.asleep = True  # type: ignore[attr-defined]
        sampler.follow(policy)
