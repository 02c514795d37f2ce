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
from rlvr_debug.diagnostics.weights import OptimizerStep, optimizer_step, snapshot
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Targets, policy_loss
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages

__all__ = ["Update", "accumulate", "batch_logprobs", "batch_totals", "update_policy"]


@dataclass(frozen=True)
class Update:
    """logprobs: the policy's before the first optimizer step, [B, T]. losses, grad_norms (before
    clipping) and steps: one per optimizer step, none where the loss counted no token.
    """

    logprobs: Tensor
    losses: list[float]
    grad_norms: list[float]
    steps: list[OptimizerStep]


def batch_totals(batch: Batch, settings: TrainingSettings, max_tokens: int) -> Totals:
    return Totals(
        len(batch.ids), int(batch.loss.sum()), settings.gradient_accumulation_steps, max_tokens
    )


def batch_logprobs(model: Any, batch: Batch, settings: TrainingSettings, stages: Stages) -> Tensor:
    """Of every token that was sampled or that the loss counts, [B, T]; 0 elsewhere."""
    return stages.logprobs(
        model,
        batch.ids,
        batch.attention,
        batch.loss | batch.sampled,
        settings.temperature,
        chunk=settings.logprobs_chunk,
        dtype=getattr(torch, settings.logprobs_dtype),
    )


def accumulate(
    model: Any,
    batch: Batch,
    targets: Targets,
    totals: Totals,
    settings: TrainingSettings,
    stages: Stages,
) -> tuple[float, Tensor]:
    """Add the gradient of the batch's loss, micro-batch by micro-batch.

    Returns the loss and the policy's log-probabilities, [B, T].
    """
    width = batch.ids.shape[1]
    loss, found = 0.0, []
    for rows in torch.arange(len(batch.ids)).tensor_split(totals.micro_batches):
        part = batch.rows(rows)
        logprobs = batch_logprobs(model, part, settings, stages)
        held = targets.rows(rows, part.ids.shape[1])
        share = policy_loss(logprobs, held, totals, settings, stages)
        if share.requires_grad:  # not where a micro-batch has nothing to predict
            share.backward()  # type: ignore[no-untyped-call]
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
    watch: Stopwatch,
) -> Update:
    """All optimizer steps of a batch. A batch without a token to learn from moves nothing: momentum
    and weight decay would move the weights on a gradient of zero.
    """
    if not batch.loss.any():
        with torch.no_grad():
            return Update(batch_logprobs(policy.model, batch, settings, stages), [], [], [])
    totals = batch_totals(batch, settings, max_tokens)
    losses, grad_norms, steps = [], [], []
    for _ in range(settings.num_iterations):
        optimizer.zero_grad()
        loss, logprobs = accumulate(policy.model, batch, targets, totals, settings, stages)
        if targets.old is None:  # no step has been made: these are the old policy's
            targets = replace(targets, old=logprobs)
        losses.append(loss)
        norm = torch.nn.utils.clip_grad_norm_(policy.trained, settings.max_grad_norm)
        grad_norms.append(float(norm))
        watch.lap("update")
        before = snapshot(policy)
        watch.lap("diagnostics")
        optimizer.step()
        watch.lap("update")
        steps.append(optimizer_step(before, policy, optimizer, logprobs))
        watch.lap("diagnostics")
        scheduler.step()
    assert targets.old is not None
    return Update(targets.old, losses, grad_norms, steps)
