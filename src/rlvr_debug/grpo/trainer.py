"""The training loop of GRPO, in one process: a step takes a state and returns the next one.

Not here: checkpoints and resuming, and more than one process.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.data.rows import Row
from rlvr_debug.diagnostics.rollouts import rollout_records
from rlvr_debug.diagnostics.settings import DiagnosticSettings
from rlvr_debug.diagnostics.step import Step, step_metrics
from rlvr_debug.diagnostics.stopwatch import Stopwatch
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.advantages import normalize_then_sum
from rlvr_debug.grpo.kl import penalized
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.optimizer import build_optimizer, build_scheduler
from rlvr_debug.grpo.policy import Policy, build_policy
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.update import batch_logprobs, update_policy
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from rlvr_debug.sampling.rollouts import Rollout, rollout

__all__ = ["StepRecord", "Task", "TrainerState", "TrainingResult", "start", "train", "train_step"]


@dataclass(frozen=True)
class Task:
    """What stays the same from step to step."""

    chat: Chat
    environment: Environment
    rows: Sequence[Row]
    settings: TrainingSettings
    stages: Stages
    diagnostics: DiagnosticSettings

    @property
    def max_tokens(self) -> int:
        """The most that a rollout can be made of, the model's own tokens."""
        return self.environment.max_new_tokens * self.environment.max_turns


@dataclass(frozen=True)
class TrainerState:
    """What a step changes. step: how many have been made; rng: of the rows and of sampling."""

    step: int
    policy: Policy
    optimizer: torch.optim.Optimizer
    scheduler: Any
    sampler: Qwen2Sampler
    rng: random.Random


@dataclass(frozen=True)
class StepRecord:
    """A step's row of metrics, its seconds by stage, and a sample of its rollouts."""

    metrics: dict[str, Any]
    seconds: dict[str, float]
    rollouts: list[dict[str, Any]]


@dataclass(frozen=True)
class TrainingResult:
    """weights: the trained model's; metrics and seconds: one mapping per step; rollouts: of some."""

    weights: dict[str, Tensor]
    metrics: list[dict[str, Any]]
    seconds: list[dict[str, float]]
    rollouts: list[dict[str, Any]]


def _nowhere(row: Mapping[str, Any]) -> None:
    """Where rows of metrics go unless someone wants them as they come."""


def train(
    model: Any,
    reference: Any,
    sampler: Qwen2Sampler,
    chat: Chat,
    environment: Environment,
    rows: Sequence[Row],
    settings: TrainingSettings,
    stages: Stages,
    seed: int,
    diagnostics: DiagnosticSettings = DiagnosticSettings(),  # noqa: B008 - frozen
    log: Callable[[Mapping[str, Any]], None] = _nowhere,
) -> TrainingResult:
    """Train `model` in place. Same arguments, same bytes of metrics.

    `sampler` starts with the model's weights; only the sync stage changes them afterwards.
    `reference` may be None where there is no KL term or where the adapter is what is trained.
    log: is given each row of metrics as it comes.
    """
    task = Task(chat, environment, rows, settings, stages, diagnostics)
    state = start(build_policy(model, reference, settings, seed), sampler, settings, seed)
    records: list[StepRecord] = []
    for _ in range(settings.steps):
        state, record = train_step(task, state)
        records.append(record)
        log(record.metrics)
    return TrainingResult(
        state.policy.weights(),
        [record.metrics for record in records],
        [record.seconds for record in records],
        [kept for record in records for kept in record.rollouts],
    )


def start(
    policy: Policy, sampler: Qwen2Sampler, settings: TrainingSettings, seed: int
) -> TrainerState:
    """The state before the first step."""
    optimizer = build_optimizer(policy.trained, settings)
    rng = random.Random(f"training rows {seed}")
    return TrainerState(0, policy, optimizer, build_scheduler(optimizer, settings), sampler, rng)


def train_step(task: Task, state: TrainerState) -> tuple[TrainerState, StepRecord]:
    """One batch of rollouts and the update on it. Returns the next state and what is recorded.

    What the state holds (weights, optimizer, schedule, sampler, generator) is changed in place.
    """
    settings, stages, step = task.settings, task.stages, state.step + 1
    watch = Stopwatch()
    prompts = state.rng.sample(task.rows, settings.prompts_per_step)
    state.sampler.reset()
    rollouts = rollout(
        [row for row in prompts for _ in range(settings.group_size)],
        task.environment,
        task.chat,
        state.sampler,
        temperature=settings.temperature,
        seed=state.rng.getrandbits(32),
        max_prompt_length=settings.max_prompt_length,
        truncation_side=settings.truncation_side,
    )
    watch.lap("sampling")
    batch = build_batch(
        rollouts,
        stages,
        task.environment,
        task.chat,
        mask_truncated=settings.mask_truncated_completions,
    )
    watch.lap("batch")
    reference = _reference_logprobs(state.policy, batch, settings, stages)
    old = None
    rewards = torch.tensor([r.reward for r in rollouts])
    shaped = rewards
    if reference is not None and settings.kl_place == "reward":
        with torch.no_grad():
            old = batch_logprobs(state.policy.model, batch, settings, stages)
        kl = stages.kl(old, reference, settings.kl_estimator)
        shaped = penalized(rewards, kl, batch.loss, settings.kl_beta)
    watch.lap("logprobs")
    advantages = _advantages(rollouts, shaped, task)
    targets = Targets(
        advantages.flatten(),
        batch.loss,
        batch.sampled,
        batch.sampler,
        reference if settings.kl_place == "loss" else None,
        old,
    )
    update = update_policy(
        state.policy,
        state.optimizer,
        state.scheduler,
        batch,
        targets,
        settings,
        stages,
        task.max_tokens,
        watch,
    )
    if not update.losses:
        warnings.warn(f"step {step}: no token to learn from, no update", stacklevel=2)
    watch.lap("update")
    stages.sync(state.policy.weights(), state.sampler)
    watch.lap("sync")
    done = Step(
        rollouts,
        task.environment,
        advantages,
        batch,
        reference,
        targets,
        state.policy,
        update,
        task.max_tokens,
    )
    row = step_metrics(done, settings, stages)
    kept: list[dict[str, Any]] = []
    if task.diagnostics.keeps_rollouts_of(step):
        some = rollouts[: task.diagnostics.rollouts_kept]
        kept = rollout_records(step, some, task.chat, batch, update.logprobs, reference, advantages)
    watch.lap("diagnostics")
    record = StepRecord({"step": step, **row}, {"step": step, **watch.seconds}, kept)
    return replace(state, step=step), record


def _reference_logprobs(
    policy: Policy, batch: Batch, settings: TrainingSettings, stages: Stages
) -> Tensor | None:
    if not settings.kl_beta:
        return None
    with torch.no_grad(), policy.as_reference() as model:
        return batch_logprobs(model, batch, settings, stages)


def _advantages(rollouts: list[Rollout], rewards: Tensor, task: Task) -> Tensor:
    """rewards: [B]; returns [P, G]."""
    settings, weights = task.settings, task.environment.weights
    shape = (-1, settings.group_size)
    if settings.multi_objective_aggregation == "normalize_then_sum":
        parts = torch.tensor([[r.parts[name] for name in weights] for r in rollouts])
        return normalize_then_sum(
            parts.view(*shape, len(weights)),
            torch.tensor(list(weights.values())),
            settings.advantage_epsilon,
            task.stages.advantages,
        )
    return task.stages.advantages(
        rewards.view(shape), settings.scale_rewards, settings.advantage_epsilon
    )
