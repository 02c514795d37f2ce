"""The sampler never gets the trained weights.

Reported in TRL 5312 and, as requests that omit the adapter, in ms-swift 9855, miles PR 2075 and verl
PR 5220; rows 23 and 24 of known bugs.
"""

from rlvr_debug.grpo.policy import Policy
from rlvr_debug.sampling.base import PolicySampler

STAGE = "sync"


def implementation(policy: Policy, sampler: PolicySampler) -> None:
    """Leave the sampler as it is."""
