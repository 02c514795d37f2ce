"""A probe checks one component of a trainer at step 0, without training: seconds, deterministic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["Measurement", "Subject"]


@dataclass(frozen=True)
class Subject:
    """The trainer under test, with rollouts that its sampler made: group_size for each prompt."""

    model: Any
    sampler: Qwen2Sampler
    stages: Stages
    settings: TrainingSettings
    environment: Environment
    chat: Chat
    rollouts: list[Rollout]


@dataclass(frozen=True)
class Measurement:
    """What was measured, the bound that it was held against, and why that bound.

    passed: the component does what it should.
    """

    probe: str
    measured: dict[str, float]
    bound: str
    reason: str
    passed: bool
