"""What a training step changes, and what it leaves on record."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from rlvr_debug.grpo.policy import Policy
from rlvr_debug.sampling.base import PolicySampler

__all__ = ["Progress", "StepRecord", "TrainerState"]


@dataclass(frozen=True)
class TrainerState:
    """step: how many have been made; rng: of the rows and of sampling."""

    step: int
    policy: Policy
    optimizer: torch.optim.Optimizer
    scheduler: Any
    sampler: PolicySampler
    rng: random.Random


@dataclass(frozen=True)
class StepRecord:
    """A step's row of metrics, its seconds by stage, and a sample of its rollouts."""

    metrics: dict[str, Any]
    seconds: dict[str, float]
    rollouts: list[dict[str, Any]]


@dataclass
class Progress:
    """metrics and seconds: one mapping per step made; rollouts: those kept of some."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)
    rollouts: list[dict[str, Any]] = field(default_factory=list)

    def add(self, record: StepRecord) -> None:
        self.metrics.append(record.metrics)
        self.seconds.append(record.seconds)
        self.rollouts.extend(record.rollouts)
