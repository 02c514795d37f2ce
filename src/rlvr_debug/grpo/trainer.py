"""The training loop of GRPO: a step takes a state and returns the next one."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.data.rows import Row
from rlvr_debug.diagnostics.step import step_metrics
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.advantages import normalize_then_sum
from rlvr_debug.grpo.checkpoint import Checkpoints
from rlvr_debug.grpo.kl import penalized
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.optimizer import build_optimizer, build_scheduler
from rlvr_debug.grpo.policy import Adapter, Policy, build_policy
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.state import Progress, TrainerState
from rlvr_debug.grpo.update import Update, shared_logprobs, update_policy
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
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
    checkpoints: Checkpoints | None = None,
    processes: Processes | None = None,
) -> TrainingResult:
    """Train `model` in place. Same arguments, same bytes of metrics, interrupted or not.

    `sampler` starts with the model's weights; only the sync stage changes them afterwards.
    `reference` may be None where there is no KL term or where the adapter is what is trained.
    """
    processes = processes or Processes()
    task = Task(chat, environment, rows, settings, stages, processes)
    policy = build_policy(model, reference, settings, seed)
    state = start(policy, sampler, settings, seed, processes)
    progress = Progress()
    if processes.sharded:
        checkpoints = None  # a shard's state is DeepSpeed's, which would pickle it
    if checkpoints:
        state, progress = checkpoints.restore(state)
    while state.step < settings.steps:
        state, row, taken = train_step(task, state)
        progress.metrics.append(row)
        progress.seconds.append(taken)
        if checkpoints and processes.main and state.step % checkpoints.every == 0:
            checkpoints.save(state, progress)
    with processes.whole(state.policy):
        saved = stages.saved_weights(state.policy)
        weights = {name: tensor.detach().clone() for name, tensor in saved.items()}
        adapter = state.policy.adapter_state()
    return TrainingResult(weights, adapter, progress.metrics, progress.seconds)


def start(
    policy: Policy,
    sampler: Qwen2Sampler,
    settings: TrainingSettings,
    seed: int,
    processes: Processes,
) -> TrainerState:
    """The state before the first step."""
    optimizer = build_optimizer(policy.trained, settings)
    scheduler = build_scheduler(optimizer, settings)
    policy, optimizer = processes.prepare(policy, optimizer)
    rng = random.Random(f"training rows {seed}")
    return TrainerState(0, policy, optimizer, scheduler, sampler, rng)


def train_step(
    task: Task, state: TrainerState
) -> tuple[TrainerState, dict[str, Any], dict[str, float]]:
    """One batch of rollouts and the update on it. Returns the next state, metrics and seconds.

    What the state holds (weights, optimizer, schedule, sampler, generator) is changed in place.
    """
    settings, stages, step = task.settings, task.stages, state.step + 1
    processes = task.processes
    started = time.perf_counter()
    rollouts = _rollouts(task, state) if processes.main else []
    sampled_at = time.perf_counter()
    batch = processes.broadcast(_batch(rollouts, task) if rollouts else None)
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
    advantages = stages.assign(_advantages(scores, shaped, task)) if rollouts else None
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
    )
    if not update.losses:
        warnings.warn(f"step {step}: no token to learn from, no update", stacklevel=2)
    with processes.whole(state.policy):
        if processes.main:
            stages.sync(state.policy.weights(), state.sampler)
    row = {}
    if advantages is not None:
        groups = (-1, settings.group_size)
        row = step_metrics(
            rollouts,
            torch.tensor([r.reward for r in rollouts]).view(groups),
            advantages.view(groups),
            batch,
            update.logprobs,
            _update_metrics(update, batch, reference, settings, stages),
        )
    seconds = {
        "step": step,
        "sampling": sampled_at - started,
        "update": time.perf_counter() - sampled_at,
    }
    return replace(state, step=step), {"step": step, **row}, seconds


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


def _batch(rollouts: list[Rollout], task: Task) -> Batch:
    return build_batch(
        rollouts,
        task.stages,
        task.environment,
        task.chat,
        mask_truncated=task.settings.mask_truncated_completions,
    )


def _advantages(scores: list[Mapping[str, float]], rewards: Tensor, task: Task) -> Tensor:
    """scores: reward parts of each rollout; rewards: [B]; returns [P, G]."""
    settings, weights = task.settings, task.environment.weights
    shape = (-1, settings.group_size)
    if settings.multi_objective_aggregation == "normalize_then_sum":
        parts = torch.tensor([[s[name] for name in weights] for s in scores])
        return normalize_then_sum(
            parts.view(*shape, len(weights)),
            torch.tensor(list(weights.values())),
            settings.advantage_epsilon,
            task.stages.advantages,
        )
    return task.stages.advantages(
        rewards.view(shape), settings.scale_rewards, settings.advantage_epsilon
    )


def _update_metrics(
    update: Update,
    batch: Batch,
    reference: Tensor | None,
    settings: TrainingSettings,
    stages: Stages,
) -> dict[str, float]:
    """What only the update knows; means over its optimizer steps."""
    if not update.losses:
        return {"loss": 0.0, "grad_norm": 0.0, "skipped_updates": settings.num_iterations}
    metrics = {"loss": fmean(update.losses), "grad_norm": fmean(update.grad_norms)}
    if reference is not None:
        kl = stages.kl(update.logprobs, reference, settings.kl_estimator)[batch.loss]
        metrics |= {"kl": float(kl.mean()), "kl/max": float(kl.max())}
    return metrics
