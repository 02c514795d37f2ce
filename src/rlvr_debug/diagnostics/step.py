"""One training step as one row of metrics, under TRL's names where TRL has the quantity.

Computed from what was sampled (the environment's own masks and rewards, the sampler's
log-probabilities) and in the right formulas, so that a faulty stage cannot hide itself.
docs/diagnostics.md has every name with its definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.diagnostics import weights
from rlvr_debug.diagnostics.advantages import advantage_metrics
from rlvr_debug.diagnostics.conversations import conversation_metrics
from rlvr_debug.diagnostics.gradients import gradient_metrics, loss_terms
from rlvr_debug.diagnostics.logprobs import (
    clip_metrics,
    kl_metrics,
    ratio_metrics,
    sampler_metrics,
)
from rlvr_debug.diagnostics.rewards import group_metrics, part_metrics
from rlvr_debug.diagnostics.tokens import token_metrics
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.update import Update, batch_totals
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["Step", "step_metrics"]


@dataclass(frozen=True)
class Step:
    """What a step leaves behind. advantages: [P, G]; reference: the reference model's
    log-probabilities, [B, T], wherever the KL goes; max_tokens: the most that a rollout can have."""

    rollouts: list[Rollout]
    environment: Environment
    advantages: Tensor
    batch: Batch
    reference: Tensor | None
    targets: Targets
    policy: Policy
    update: Update
    max_tokens: int


def step_metrics(step: Step, settings: TrainingSettings, stages: Stages) -> dict[str, Any]:
    rollouts, batch = step.rollouts, step.batch
    shape = step.advantages.shape
    rewards = torch.tensor([rollout.reward for rollout in rollouts]).view(shape)
    right = [rollout.parts[step.environment.success] >= 1 for rollout in rollouts]
    parts = {name: [r.parts[name] for r in rollouts] for name in rollouts[0].parts}
    return {
        **group_metrics(rewards, torch.tensor(right).view(shape)),
        **part_metrics(parts, [rollout.reward for rollout in rollouts]),
        **advantage_metrics(step.advantages),
        **conversation_metrics(rollouts),
        **token_metrics(batch.loss, batch.sampled, batch.real),
        **_logprob_metrics(step, settings),
        **_update_metrics(step, rewards.std(1), settings, stages),
    }


def _logprob_metrics(step: Step, settings: TrainingSettings) -> dict[str, float]:
    old, sampled = step.update.logprobs, step.batch.sampled
    found = sampler_metrics(old[sampled], step.batch.sampler[sampled])
    if step.reference is not None:
        found |= kl_metrics(old[sampled], step.reference[sampled], settings.kl_estimator)
    if step.update.passes:
        passes = step.update.passes
        clip = (settings.clip, settings.epsilon_high)
        gains = step.advantages.flatten()
        found |= ratio_metrics(passes[-1][sampled], old[sampled])
        found |= clip_metrics(passes, old, sampled, gains, clip, settings.importance_sampling_level)
    return found


def _update_metrics(
    step: Step, group_std: Tensor, settings: TrainingSettings, stages: Stages
) -> dict[str, float]:
    """What only the update knows; means over its optimizer steps."""
    update = step.update
    adapter = {} if step.policy.adapter is None else {"lora/norm": weights.lora_norm(step.policy)}
    if not update.losses:
        skipped = {"loss": 0.0, "grad_norm": 0.0, "skipped_updates": settings.num_iterations}
        return {**skipped, **adapter}
    totals = batch_totals(step.batch, settings, step.max_tokens)
    terms = loss_terms(update.logprobs, step.targets, totals, settings, stages)
    return {
        "loss": fmean(update.losses),
        "grad_norm": fmean(update.grad_norms),
        **(weights.step_metrics(update.steps) if update.steps else {}),
        **gradient_metrics(terms, group_std),
        **adapter,
    }
