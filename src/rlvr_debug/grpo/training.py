"""What a training is given, changes and returns, and what each of its steps tells an observer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.loss import Experience, Loss, policy_loss
from rlvr_debug.grpo.policy import Adapter, Policy
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.shadow import Shadow
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.base import PolicySampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout


@dataclass(frozen=True)
class Training:
    """What a training is given, and what stays the same from step to step; shadow compares its stages with another run's."""

    chat: Chat
    environment: Environment
    rows: Sequence[Row]
    settings: TrainingSettings
    seed: int
    stages: Stages = field(default_factory=Stages)
    processes: Processes = field(default_factory=Processes)
    # asked before an update, it returns what measures the sampler's gap after it (SyncCheck)
    check: (
        Callable[[Training, Policy, list[Rollout]], Callable[[Policy, int], float | None]] | None
    ) = None
    shadow: Shadow | None = None

    @property
    def loss_of(self) -> Loss:
        return self.shadow.loss if self.shadow else policy_loss


@dataclass(frozen=True)
class TrainerState:
    """What a step changes. `step` counts those made; `rng` draws the rows and the seeds of sampling."""

    step: int
    policy: Policy
    optimizer: Optimizer
    scheduler: Any
    sampler: PolicySampler
    rng: random.Random


@dataclass(frozen=True)
class Update:
    """What the optimizer steps of a batch were computed from; the lists have one entry per optimizer step.

    logprobs: the policy's before the first, [B, T]; grad_norms: before clipping; passes: the log-probabilities at each.
    """

    logprobs: Tensor
    losses: list[float]
    grad_norms: list[float]
    passes: list[Tensor]


@dataclass(frozen=True)
class Step:
    """What one step made, in the main process; reference: [B, T], wherever the KL goes."""

    number: int
    training: Training
    policy: Policy
    rollouts: list[Rollout]
    experience: Experience
    reference: Tensor | None
    update: Update
    sync_gap: float | None


@dataclass(frozen=True)
class StepRecord:
    """What is recorded of a step: a row of metrics, seconds by stage, and some of its rollouts."""

    metrics: dict[str, Any]
    seconds: dict[str, float]
    rollouts: list[dict[str, Any]]


@dataclass
class Progress:
    """What was recorded up to now, and by stage in which step another run would have parted from this one."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)
    rollouts: list[dict[str, Any]] = field(default_factory=list)
    parted: dict[str, int] = field(default_factory=dict)

    def add(self, record: StepRecord) -> None:
        """Append a step's record."""
        self.metrics.append(record.metrics)
        self.seconds.append(record.seconds)
        self.rollouts.extend(record.rollouts)

    def part(self, stages: Iterable[str]) -> None:
        """Take note of stages that have parted by the last step."""
        self.parted = {**dict.fromkeys(sorted(stages), len(self.metrics)), **self.parted}


class Observer:
    """Records nothing, in the main process; others override its methods, of which none changes what is trained."""

    def begin_step(self, state: TrainerState) -> None:
        """Take note of the state before a step."""

    def end_stage(self, stage: str) -> None:
        """Take note that a stage of the step is over."""

    def before_optimizer_step(self, policy: Policy, optimizer: Optimizer) -> None:
        """Look at the weights and their clipped gradient; of a sharded policy there are only parts."""

    def after_optimizer_step(self, policy: Policy) -> None:
        """Look at the weights that the optimizer moved."""

    def end_step(self, step: Step) -> StepRecord:
        """Return what is to be recorded of the step."""
        return StepRecord({"step": step.number}, {}, [])


@dataclass(kw_only=True)
class TrainingResult(Progress):
    """What a training returns: the weights that are saved, of an adapter with their config, and what was recorded."""

    weights: dict[str, Tensor]
    adapter: Adapter | None
