"""The sampler is given the weights twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvr_debug.grpo.policy import Policy
    from rlvr_debug.sampling.base import PolicySampler

STAGE = "sync"


def implementation(policy: Policy, sampler: PolicySampler) -> None:
    sampler.follow(policy)
    sampler.follow(policy)
