"""One batch -> num_iterations optimizer steps, each accumulated over micro-batches. Axes: B sequences, T tokens."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlvr_debug.grpo.loss import Experience, Loss, policy_loss
from rlvr_debug.grpo.objective import Totals
from rlvr_debug.grpo.policy import run_stage
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.training import Observer, TrainerState, Update


def batch_totals(
    batch: Batch, settings: TrainingSettings, max_tokens: int, processes: Processes
) -> Totals:
    """Return the denominators of the loss. max_tokens: the most that a rollout's own tokens could be."""
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
    count, width = experience.batch.ids.shape
    loss, found = 0.0, []
    for rows in torch.arange(count).tensor_split(settings.gradient_accumulation_steps):
        part = experience.rows(rows)
        with processes.accumulating(model):
            logprobs = batch_logprobs(model, part.batch, settings, stages)
            share = loss_of(logprobs, part.targets, part.totals, settings, stages)
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
    policy, optimizer, batch = state.policy, state.optimizer, experience.batch
    if not batch.loss.any():
        warnings.warn(f"step {state.step + 1}: no token to learn from, no update", stacklevel=3)
        logprobs = shared_logprobs(policy.shared, batch, settings, stages, processes)
        return Update(logprobs, [], [], [])
    mine = experience.rows(processes.share(batch))
    losses, grad_norms, passes = [], [], []
    for _ in range(settings.num_iterations):
        optimizer.zero_grad()
        loss, logprobs = accumulate(policy.shared, mine, settings, stages, processes, loss_of)
        if mine.targets.old is None:  # no step has been made: these are the old policy's
            mine = replace(mine, targets=replace(mine.targets, old=logprobs))
        losses.append(processes.total(loss))
        grad_norms.append(processes.clip(policy, settings.max_grad_norm))
        observer.before_optimizer_step(policy, optimizer)
        stages.optimizer_step(optimizer)
        observer.after_optimizer_step(policy)
        passes.append(processes.gather(logprobs, batch))
        state.scheduler.step()
    assert mine.targets.old is not None
    return Update(processes.gather(mine.targets.old, batch), losses, grad_norms, passes)
