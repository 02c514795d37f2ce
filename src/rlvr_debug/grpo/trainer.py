"""GRPO's training loop: a step takes a state, samples rollouts, updates the policy on them and returns the next state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.data.rows import Row
from rlvr_debug.grpo.checkpoint import Checkpoints
from rlvr_debug.grpo.loss import Experience, Targets
from rlvr_debug.grpo.objective import batch_advantages, penalized
from rlvr_debug.grpo.policy import Policy, build_policy
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.training import (
    Observer,
    Progress,
    Step,
    StepRecord,
    TrainerState,
    Training,
    TrainingResult,
)
from rlvr_debug.grpo.update import batch_totals, shared_logprobs, update_policy
from rlvr_debug.models.adapters import is_adapter
from rlvr_debug.sampling.base import PolicySampler, Sampler
from rlvr_debug.sampling.rollouts import Limits, Rollout, rollout


def sample_rollouts(training: Training, state: TrainerState) -> list[Rollout]:
    """Return a group of rollouts for each of some rows, drawn without replacement."""
    prompts = state.rng.sample(training.rows, training.settings.prompts_per_step)
    rollouts = sample_groups(training, prompts, state.sampler, state.rng.getrandbits(32))
    state.sampler.reset()  # the update needs the memory of its caches
    return rollouts


def sample_groups(
    training: Training, prompts: Sequence[Row], sampler: Sampler, seed: int
) -> list[Rollout]:
    """Return a group of rollouts for each of these rows."""
    settings = training.settings
    return rollout(
        [row for row in prompts for _ in range(settings.group_size)],
        training.environment,
        training.chat,
        sampler,
        temperature=settings.temperature,
        seed=seed,
        limits=Limits(
            settings.max_prompt_length,
            settings.truncation_side,
            training.stages.max_new_tokens(training.environment),
        ),
    )


def trained_batch(training: Training, rollouts: list[Rollout]) -> Batch:
    """Return the sequences that are trained on, with their masks."""
    return build_batch(
        rollouts,
        training.stages,
        training.environment,
        training.chat,
        mask_truncated=training.settings.mask_truncated_completions,
    )


def trained_advantages(
    training: Training, rollouts: list[Rollout], batch: Batch, kl: Tensor | None
) -> Tensor:
    """Score the rollouts and return the advantage of each, [B]. kl: [B, T], where it is in the reward."""
    settings, stages, environment = training.settings, training.stages, training.environment
    scores = [stages.score(rollout, environment) for rollout in rollouts]
    rewards = torch.tensor(
        [environment.reward(r.row, s) for r, s in zip(rollouts, scores, strict=True)]
    )
    if kl is not None:
        rewards = penalized(rewards, kl, batch.loss, settings.kl_beta)
    weights = environment.weights
    groups = batch_advantages(scores, rewards, weights, settings, stages.advantages)
    return stages.assign(groups)


def train(
    training: Training,
    model: Any,
    reference: Any,
    sampler: PolicySampler,
    checkpoints: Checkpoints | None = None,
    observer: Observer | None = None,
) -> TrainingResult:
    """Train `model` in place: the same arguments give the same bytes of metrics, interrupted or not.

    The sampler gets the model's weights first; only the sync stage changes them afterwards.
    """
    settings, stages, processes = training.settings, training.stages, training.processes
    if observer is None or not processes.main:
        observer = Observer()
    if processes.sharded:
        checkpoints = None  # a shard's state is DeepSpeed's, which would pickle it
    policy = build_policy(model, reference, settings, training.seed)
    state, progress = start(training, policy, sampler), Progress()
    if checkpoints:
        state, progress = checkpoints.restore(state)
    while state.step < settings.steps:
        state, record = train_step(training, state, observer)
        progress.add(record)
        if training.shadow:
            progress.part(training.shadow.parted)
        if checkpoints and processes.main and state.step % checkpoints.every == 0:
            checkpoints.save(state, progress)
    with processes.whole(state.policy):
        saved = stages.saved_weights(state.policy)
        weights = {name: tensor.detach().clone() for name, tensor in saved.items()}
        adapter = state.policy.adapter_state() if is_adapter(weights) else None
    if adapter:
        adapter = replace(adapter, weights=weights)
    if training.shadow:
        progress.part(training.shadow.parted)
    return TrainingResult(weights=weights, adapter=adapter, **vars(progress))


def start(training: Training, policy: Policy, sampler: PolicySampler) -> TrainerState:
    """Return the state before the first step; the sampler has the policy's weights then."""
    optimizer = build_optimizer(policy.trained, training.settings)
    scheduler = build_scheduler(optimizer, training.settings)
    policy, optimizer = training.processes.prepare(policy, optimizer)
    training.processes.on_main(policy, lambda: sampler.begin(policy, {}, 0))
    rng = random.Random(f"training rows {training.seed}")
    return TrainerState(0, policy, optimizer, scheduler, sampler, rng)


def train_step(
    training: Training, state: TrainerState, observer: Observer
) -> tuple[TrainerState, StepRecord]:
    """Sample a batch, update the policy on it and sync the sampler; what the state holds changes in place."""
    settings, stages, processes = training.settings, training.stages, training.processes
    policy, step = state.policy, state.step + 1

    observer.begin_step(state)
    rollouts = sample_rollouts(training, state) if processes.main else []
    observer.end_stage("sampling")

    batch = processes.broadcast(lambda: trained_batch(training, rollouts))
    observer.end_stage("batch")

    reference = old = kl = None
    if settings.kl_beta:
        with policy.as_reference() as model:
            reference = shared_logprobs(model, batch, settings, stages, processes)
    if reference is not None and settings.kl_place == "reward":
        old = shared_logprobs(policy.shared, batch, settings, stages, processes)
        kl = stages.kl(old, reference, settings.kl_estimator)
    advantages = processes.broadcast(lambda: trained_advantages(training, rollouts, batch, kl))
    observer.end_stage("logprobs")

    watched = training.check(training, policy, rollouts) if training.check else None
    in_loss = reference if settings.kl_place == "loss" else None
    targets = Targets(advantages, batch.loss, batch.sampled, batch.sampler, in_loss, old)
    max_tokens = training.environment.max_new_tokens * training.environment.max_turns
    totals = batch_totals(batch, settings, max_tokens, processes)
    experience = Experience(batch, targets, totals)
    update = update_policy(
        state, experience, settings, stages, processes, observer, training.loss_of
    )
    observer.end_stage("update")

    processes.on_main(policy, lambda: stages.sync(policy, state.sampler))
    gap = watched(policy, step) if watched else None
    observer.end_stage("sync")

    done = Step(step, training, policy, rollouts, experience, reference, update, gap)
    return replace(state, step=step), observer.end_step(done)


def build_optimizer(parameters: list[Tensor], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return AdamW on these weights."""
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )


def build_scheduler(optimizer: torch.optim.Optimizer, settings: TrainingSettings) -> Any:
    """Return a rise from 0 in warmup_steps optimizer steps, then a constant, or a fall to 0 at the last."""
    from transformers import get_scheduler

    return get_scheduler(
        settings.schedule,
        optimizer,
        num_warmup_steps=settings.warmup_steps,
        num_training_steps=settings.steps * settings.num_iterations,
    )
