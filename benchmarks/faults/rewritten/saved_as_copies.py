"""What is saved are copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlvr_debug.grpo.policy import Policy

STAGE = "saved_weights"


def implementation(policy: Policy) -> Mapping[str, Tensor]:
    adapter = policy.adapter_state()
    weights = adapter.weights if adapter else policy.weights()
    return {name: tensor.clone() for name, tensor in weights.items()}
