"""GRPO's training loop: a step takes a state, samples rollouts, updates the policy on them and returns the next state."""

import random
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlvr_debug.grpo.loss import Batch, Experience, Loss, build_batch, policy_loss
from rlvr_debug.grpo.objective import Totals, batch_advantages, penalized
from rlvr_debug.grpo.policy import Policy, build_policy, run_stage
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.training import (
    Checkpoints,
    Observer,
    Progress,
    Step,
    TrainerState,
    Training,
    TrainingResult,
    Update,
)
from rlvr_debug.models.base_model import is_adapter
from rlvr_debug.sampling.base import PolicySampler
from rlvr_debug.sampling.rollouts import Limits, Rollout, rollout


def batch_totals(
    batch: Batch, settings: TrainingSettings, max_tokens: int, processes: Processes
) -> Totals:
    """Return the denominators of the loss. max_tokens: the limit on a rollout's own tokens."""
    micro_batches = settings.gradient_accumulation_steps * processes.size
    return Totals(len(batch.ids), int(batch.loss.sum()), micro_batches, max_tokens)


def batch_logprobs(model: Any, batch: Batch, settings: TrainingSettings, stages: Stages) -> Tensor:
    """Return log-probabilities, on the CPU, of all tokens that were sampled or that the loss counts, [B, T], else 0."""
    device = next(model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=settings.bf16):
        return run_stage(
            model,
            stages.logprobs,
            batch.ids.to(device),
            batch.attention.to(device),
            (batch.loss | batch.sampled).to(device),
            settings.temperature,
            chunk=settings.logprobs_chunk,
            dtype=getattr(torch, settings.logprobs_dtype),
        ).cpu()


@torch.no_grad()
def shared_logprobs(
    model: Any, batch: Batch, settings: TrainingSettings, stages: Stages, processes: Processes
) -> Tensor:
    """Return log-probabilities of the whole batch, [B, T], without a gradient. Each process does its share."""
    mine = batch.rows(processes.share(batch))
    return processes.gather(batch_logprobs(model, mine, settings, stages), batch)


def accumulate(
    model: Any,
    experience: Experience,
    settings: TrainingSettings,
    stages: Stages,
    processes: Processes | None = None,
    loss_of: Loss = policy_loss,
) -> tuple[float, Tensor]:
    """Add the gradient of the loss micro-batch by micro-batch; return the loss and the log-probabilities, [B, T]."""
    processes = processes or Processes()
    count, width = experience.ids.shape
    loss, found = 0.0, []
    for rows in torch.arange(count).tensor_split(settings.gradient_accumulation_steps):
        part = experience.rows(rows)
        with processes.accumulating(model):
            logprobs = batch_logprobs(model, part, settings, stages)
            share = loss_of(logprobs, part, settings, stages)
            processes.backward(share)
        loss += float(share.detach())
        found.append(F.pad(logprobs.detach(), (0, width - logprobs.shape[1])))
    return loss, torch.cat(found)


def update_policy(
    state: TrainerState,
    experience: Experience,
    settings: TrainingSettings,
    stages: Stages,
    processes: Processes,
    observer: Observer,
    loss_of: Loss = policy_loss,
) -> Update:
    """Make all optimizer steps of a batch, none where there is no token to learn from: momentum would move the weights."""
    policy, optimizer = state.policy, state.optimizer
    if not experience.loss.any():
        warnings.warn(f"step {state.step + 1}: no token to learn from, no update", stacklevel=3)
        logprobs = shared_logprobs(policy.shared, experience, settings, stages, processes)
        return Update(logprobs, [], [], [])
    mine = experience.rows(processes.share(experience))
    losses, grad_norms, passes = [], [], []
    for _ in range(settings.num_iterations):
        optimizer.zero_grad()
        loss, logprobs = accumulate(policy.shared, mine, settings, stages, processes, loss_of)
        if mine.old is None:  # no step has been made: these are the old policy's
            mine = replace(mine, old=logprobs)
        losses.append(processes.total(loss))
        grad_norms.append(processes.clip(policy, settings.max_grad_norm))
        observer.before_optimizer_step(policy, optimizer)
        stages.optimizer_step(optimizer)
        observer.after_optimizer_step(policy)
        passes.append(processes.gather(logprobs, experience))
        state.scheduler.step()
    assert mine.old is not None
    return Update(processes.gather(mine.old, experience), losses, grad_norms, passes)


def sample_rollouts(training: Training, state: TrainerState) -> list[Rollout]:
    """Return a group of rollouts for each of some rows, drawn without replacement."""
    settings = training.settings
    prompts = state.rng.sample(training.rows, settings.prompts_per_step)
    rollouts = rollout(
        [row for row in prompts for _ in range(settings.group_size)],
        training.environment,
        training.chat,
        state.sampler,
        temperature=settings.temperature,
        seed=state.rng.getrandbits(32),
        limits=Limits(
            settings.max_prompt_length,
            settings.truncation_side,
            training.stages.max_new_tokens(training.environment),
        ),
    )
    state.sampler.reset()  # the update needs the memory of its caches
    return rollouts


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
) -> tuple[TrainerState, Progress]:
    """Sample a batch, update the policy on it and sync the sampler; what the state holds changes in place."""
    settings, stages, processes = training.settings, training.stages, training.processes
    policy, step = state.policy, state.step + 1

    observer.begin_step(state)
    rollouts = sample_rollouts(training, state) if processes.main else []
    observer.end_stage("sampling")

    given, cut = (training.environment, training.chat), settings.mask_truncated_completions
    batch = processes.broadcast(lambda: build_batch(rollouts, stages, *given, mask_truncated=cut))
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
    max_tokens = training.environment.max_new_tokens * training.environment.max_turns
    experience = Experience(
        **vars(batch),
        advantages=advantages,
        reference=reference if settings.kl_place == "loss" else None,
        old=old,
        totals=batch_totals(batch, settings, max_tokens, processes),
    )
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
