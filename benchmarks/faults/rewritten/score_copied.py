"""Reward parts, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlvr_debug.environments.base import Environment
    from rlvr_debug.sampling.rollouts import Rollout

STAGE = "score"


def implementation(rollout: Rollout, environment: Environment) -> Mapping[str, float]:
    return {name: float(value) for name, value in rollout.parts.items()}
