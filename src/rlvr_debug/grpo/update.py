"""One batch -> num_iterations optimizer steps, each accumulated over micro-batches.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlvr_debug.diagnostics.stopwatch import Stopwatch
from rlvr_debug.diagnostics.weights import WeightChange, plan_change, weight_change
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Loss, Targets, policy_loss
from rlvr_debug.grpo.policy import Policy, run_stage
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages

__all__ = [
    "Update",
    "accumulate",
    "batch_logprobs",
    "batch_totals",
    "shared_logprobs",
    "update_policy",
]


@dataclass(frozen=True)
class Update:
    """logprobs: the policy's before the first optimizer step, [B, T]. losses, grad_norms (before
    clipping), passes (the log-probabilities that each was computed at, [B, T]) and changes: one per
    optimizer step, none where the loss counted no token; changes: none of a sharded model either.
    """

    logprobs: Tensor
    losses: list[float]
    grad_norms: list[float]
    passes: list[Tensor]
    changes: list[WeightChange]


def batch_totals(
    batch: Batch, settings: TrainingSettings, max_tokens: int, processes: Processes
) -> Totals:
    micro_batches = settings.gradient_accumulation_steps * processes.size
    return Totals(len(batch.ids), int(batch.loss.sum()), micro_batches, max_tokens)


def batch_logprobs(model: Any, batch: Batch, settings: TrainingSettings, stages: Stages) -> Tensor:
    """Of every token that was sampled or that the loss counts, [B, T]; 0 elsewhere.

    Only here does a batch go to the model's device, and what comes back is on the CPU.
    """
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
    """Of the whole batch, [B, T], without a gradient; each process computes those of its share."""
    mine = batch.rows(processes.share(batch))
    return processes.gather(batch_logprobs(model, mine, settings, stages), batch)


def accumulate(
    model: Any,
    batch: Batch,
    targets: Targets,
    totals: Totals,
    settings: TrainingSettings,
    stages: Stages,
    processes: Processes | None = None,
    loss_of: Loss = policy_loss,
) -> tuple[float, Tensor]:
    """Add the gradient of the loss of this process' batch, micro-batch by micro-batch.

    Returns the loss and the policy's log-probabilities, [B, T].
    """
    processes = processes or Processes()
    width = batch.ids.shape[1]
    loss, found = 0.0, []
    for rows in torch.arange(len(batch.ids)).tensor_split(settings.gradient_accumulation_steps):
        part = batch.rows(rows)
        with processes.accumulating(model):
            logprobs = batch_logprobs(model, part, settings, stages)
            held = targets.rows(rows, part.ids.shape[1])
            share = loss_of(logprobs, held, totals, settings, stages)
            processes.backward(share)
        loss += float(share.detach())
        found.append(F.pad(logprobs.detach(), (0, width - logprobs.shape[1])))
    return loss, torch.cat(found)


def update_policy(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    batch: Batch,
    targets: Targets,
    settings: TrainingSettings,
    stages: Stages,
    max_tokens: int,
    processes: Processes,
    watch: Stopwatch,
) -> Update:
    """All optimizer steps of a batch. A batch without a token to learn from moves nothing: momentum
    and weight decay would move the weights on a gradient of zero.
    """
    if not batch.loss.any():
        logprobs = shared_logprobs(policy.shared, batch, settings, stages, processes)
        return Update(logprobs, [], [], [], [])
    totals = batch_totals(batch, settings, max_tokens, processes)
    rows = processes.share(batch)
    mine = batch.rows(rows)
    held = targets.rows(rows, mine.ids.shape[1])
    losses, grad_norms, passes, changes = [], [], [], []
    for _ in range(settings.num_iterations):
        optimizer.zero_grad()
        loss, logprobs = accumulate(policy.shared, mine, held, totals, settings, stages, processes)
        if held.old is None:  # no step has been made: these are the old policy's
            held = replace(held, old=logprobs)
        losses.append(processes.total(loss))
        grad_norms.append(processes.clip(policy, settings.max_grad_norm))
        watch.lap("update")
        plan = None if processes.sharded else plan_change(policy, optimizer)
        watch.lap("diagnostics")
        stages.optimizer_step(optimizer)
        watch.lap("update")
        passes.append(processes.gather(logprobs, batch))
        if plan is not None:
            changes.append(weight_change(plan, policy))
        watch.lap("diagnostics")
        scheduler.step()
    assert held.old is not None
    return Update(processes.gather(held.old, batch), losses, grad_norms, passes, changes)
