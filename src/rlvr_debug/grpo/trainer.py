"""The training loop of GRPO: a step takes a state and returns the next one."""

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
from rlvr_debug.grpo.advantages import batch_advantages
from rlvr_debug.grpo.checkpoint import Checkpoints
from rlvr_debug.grpo.kl import penalized
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.optimizer import build_optimizer, build_scheduler
from rlvr_debug.grpo.policy import Adapter, Policy, build_policy
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.state import Progress, StepRecord, TrainerState
from rlvr_debug.grpo.sync_check import SyncCheck, some_rows
from rlvr_debug.grpo.update import batch_totals, shared_logprobs, update_policy
from rlvr_debug.sampling.base import PolicySampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, rollout

__all__ = ["Task", "TrainingResult", "start", "train", "train_step"]


@dataclass(frozen=True)
class Task:
    """What stays the same from step to step."""

    chat: Chat
    environment: Environment
    rows: Sequence[Row]
    settings: TrainingSettings
    stages: Stages
    processes: Processes
    diagnostics: DiagnosticSettings
    check: SyncCheck | None = None

    @property
    def max_tokens(self) -> int:
        """The most that a rollout can be made of, the model's own tokens."""
        return self.environment.max_new_tokens * self.environment.max_turns


@dataclass(frozen=True)
class TrainingResult:
    """weights: the trained model's; adapter: what LoRA added, on its own; metrics and seconds: one
    mapping per step."""

    weights: dict[str, Tensor]
    adapter: Adapter | None
    metrics: list[dict[str, Any]]
    seconds: list[dict[str, float]]
    rollouts: list[dict[str, Any]]


def _nowhere(row: Mapping[str, Any]) -> None:
    """Where rows of metrics go unless someone wants them as they come."""


def train(
    model: Any,
    reference: Any,
    sampler: PolicySampler,
    chat: Chat,
    environment: Environment,
    rows: Sequence[Row],
    settings: TrainingSettings,
    stages: Stages,
    seed: int,
    checkpoints: Checkpoints | None = None,
    processes: Processes | None = None,
    diagnostics: DiagnosticSettings = DiagnosticSettings(),  # noqa: B008 - frozen
    log: Callable[[Mapping[str, Any]], None] = _nowhere,
    check: SyncCheck | None = None,
) -> TrainingResult:
    """Train `model` in place. Same arguments, same bytes of metrics, interrupted or not.

    `sampler` is given the model's weights first; only the sync stage changes them afterwards.
    `reference` may be None where there is no KL term or where the adapter is what is trained.
    log: is given each row of metrics as it comes. check: of every update, where the sampler is a server.
    """
    processes = processes or Processes()
    task = Task(chat, environment, rows, settings, stages, processes, diagnostics, check)
    policy = build_policy(model, reference, settings, seed)
    state = start(policy, sampler, settings, seed, processes)
    progress = Progress()
    if processes.sharded:
        checkpoints = None  # a shard's state is DeepSpeed's, which would pickle it
    if checkpoints:
        state, progress = checkpoints.restore(state)
    while state.step < settings.steps:
        state, record = train_step(task, state)
        progress.add(record)
        log(record.metrics)
        if checkpoints and processes.main and state.step % checkpoints.every == 0:
            checkpoints.save(state, progress)
    with processes.whole(state.policy):
        saved = stages.saved_weights(state.policy)
        weights = {name: tensor.detach().clone() for name, tensor in saved.items()}
        adapter = state.policy.adapter_state()
    return TrainingResult(weights, adapter, progress.metrics, progress.seconds, progress.rollouts)


def start(
    policy: Policy,
    sampler: PolicySampler,
    settings: TrainingSettings,
    seed: int,
    processes: Processes,
) -> TrainerState:
    """The state before the first step."""
    optimizer = build_optimizer(policy.trained, settings)
    scheduler = build_scheduler(optimizer, settings)
    policy, optimizer = processes.prepare(policy, optimizer)
    with processes.whole(policy):
        if processes.main:
            sampler.begin(policy, {}, 0)
    rng = random.Random(f"training rows {seed}")
    return TrainerState(0, policy, optimizer, scheduler, sampler, rng)


def train_step(task: Task, state: TrainerState) -> tuple[TrainerState, StepRecord]:
    """One batch of rollouts and the update on it. Returns the next state and what is recorded.

    What the state holds (weights, optimizer, schedule, sampler, generator) is changed in place.
    """
    settings, stages, step = task.settings, task.stages, state.step + 1
    processes = task.processes
    watch = Stopwatch()
    served = state.sampler.served if processes.main else ""
    rollouts = _rollouts(task, state) if processes.main else []
    watch.lap("sampling")
    batch = processes.broadcast(_batch(rollouts, task) if rollouts else None)
    watch.lap("batch")
    reference = None
    if settings.kl_beta:
        with state.policy.as_reference() as model:
            reference = shared_logprobs(model, batch, settings, stages, processes)
    old = None
    scores = [stages.score(r, task.environment) for r in rollouts]
    shaped = torch.tensor(
        [task.environment.reward(r.row, s) for r, s in zip(rollouts, scores, strict=True)]
    )
    if reference is not None and settings.kl_place == "reward":
        old = shared_logprobs(state.policy.shared, batch, settings, stages, processes)
        kl = stages.kl(old, reference, settings.kl_estimator)
        shaped = penalized(shaped, kl, batch.loss, settings.kl_beta) if rollouts else shaped
    watch.lap("logprobs")
    advantages = None
    if rollouts:
        weights = task.environment.weights
        groups = batch_advantages(scores, shaped, weights, settings, stages.advantages)
        advantages = stages.assign(groups)
    watched = _watched(task, state, rollouts) if task.check else None
    targets = Targets(
        processes.broadcast_values(advantages, len(batch.ids)),
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
        processes,
        watch,
    )
    if not update.losses:
        warnings.warn(f"step {step}: no token to learn from, no update", stacklevel=2)
    watch.lap("update")
    with processes.whole(state.policy):
        if processes.main:
            stages.sync(state.policy, state.sampler)
    gap = {}
    if task.check and watched:
        after = _trainer_logprobs(task, state, watched[0])
        if processes.main:
            gap = {"sync_gap": task.check.gap(*watched, after, step)}
    watch.lap("sync")
    row, kept = {}, []
    if advantages is not None:
        done = Step(
            rollouts,
            task.environment,
            advantages.view(-1, settings.group_size),
            batch,
            reference,
            targets,
            state.policy,
            update,
            batch_totals(batch, settings, task.max_tokens, processes),
        )
        row = {**step_metrics(done, settings, stages), **gap}
        if task.diagnostics.keeps_rollouts_of(step):
            count = task.diagnostics.rollouts_kept
            kept = rollout_records(step, done, task.chat, count, served)
    watch.lap("diagnostics")
    record = StepRecord({"step": step, **row}, {"step": step, **watch.seconds}, kept)
    return replace(state, step=step), record


def _rollouts(task: Task, state: TrainerState) -> list[Rollout]:
    settings = task.settings
    prompts = state.rng.sample(task.rows, settings.prompts_per_step)
    found = rollout(
        [row for row in prompts for _ in range(settings.group_size)],
        task.environment,
        task.chat,
        state.sampler,
        temperature=settings.temperature,
        seed=state.rng.getrandbits(32),
        max_prompt_length=settings.max_prompt_length,
        truncation_side=settings.truncation_side,
        max_new_tokens=task.stages.max_new_tokens(task.environment),
    )
    state.sampler.reset()  # the update needs the memory of its caches
    return found


def _watched(task: Task, state: TrainerState, rollouts: list[Rollout]) -> tuple[Batch, Tensor]:
    """Some rollouts as they were sampled, for what a stage made of them is not the server's, and the
    trainer's log-probabilities of them."""
    batch = None
    if rollouts:
        chosen = [rollouts[b] for b in some_rows(len(rollouts), task.processes.size).tolist()]
        batch = build_batch(chosen, Stages(), task.environment, task.chat)
    batch = task.processes.broadcast(batch)
    return batch, _trainer_logprobs(task, state, batch)


def _trainer_logprobs(task: Task, state: TrainerState, batch: Batch) -> Tensor:
    """At temperature 1, as a server gives those of prompts: [B, T]."""
    settings = replace(task.settings, temperature=1.0)
    return shared_logprobs(state.policy.shared, batch, settings, Stages(), task.processes)


def _batch(rollouts: list[Rollout], task: Task) -> Batch:
    return build_batch(
        rollouts,
        task.stages,
        task.environment,
        task.chat,
        mask_truncated=task.settings.mask_truncated_completions,
    )
