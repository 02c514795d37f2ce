"""One training step as one row of metrics, under TRL's names where TRL has the quantity.

Computed from what was sampled (the environment's own masks and rewards, the sampler's
log-probabilities) and in the right formulas, so that a faulty stage cannot hide itself.
docs/diagnostics.md has every name with its definition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.diagnostics import weights
from rlvr_debug.diagnostics.advantages import advantage_metrics
from rlvr_debug.diagnostics.conversations import conversation_metrics
from rlvr_debug.diagnostics.gradients import gradient_error, gradient_metrics, loss_terms
from rlvr_debug.diagnostics.logprobs import (
    clip_metrics,
    kl_metrics,
    ratio_metrics,
    sampler_metrics,
)
from rlvr_debug.diagnostics.rewards import group_metrics, part_metrics
from rlvr_debug.diagnostics.tokens import token_metrics
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.advantages import advantages, batch_advantages
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.masks import without_truncated
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.update import Update
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["Step", "step_metrics"]


@dataclass(frozen=True)
class Step:
    """What a step leaves behind. advantages: [P, G]; reference: the reference model's
    log-probabilities, [B, T], wherever the KL goes."""

    rollouts: list[Rollout]
    environment: Environment
    advantages: Tensor
    batch: Batch
    reference: Tensor | None
    targets: Targets
    policy: Policy
    update: Update
    totals: Totals


def step_metrics(step: Step, settings: TrainingSettings, stages: Stages) -> dict[str, Any]:
    rollouts, batch = step.rollouts, step.batch
    shape = step.advantages.shape
    rewards = torch.tensor([rollout.reward for rollout in rollouts]).view(shape)
    right = [rollout.parts[step.environment.success] >= 1 for rollout in rollouts]
    parts = {name: [r.parts[name] for r in rollouts] for name in rollouts[0].parts}
    gains = _right_advantages(step, rewards.flatten(), settings)
    return {
        **group_metrics(rewards, torch.tensor(right).view(shape)),
        **part_metrics(parts, [rollout.reward for rollout in rollouts]),
        **advantage_metrics(step.advantages, gains),
        **conversation_metrics(rollouts),
        **token_metrics(batch.loss, batch.sampled, batch.real),
        **_logprob_metrics(step, settings),
        **_update_metrics(step, rewards.std(1), gains, settings, stages),
    }


def _right_advantages(step: Step, rewards: Tensor, settings: TrainingSettings) -> Tensor | None:
    """rewards: [B]. Not known where the KL is in the reward: it is the trainer's."""
    if settings.kl_beta and settings.kl_place == "reward":
        return None
    scores = [rollout.parts for rollout in step.rollouts]
    return batch_advantages(scores, rewards, step.environment.weights, settings, advantages)


def _logprob_metrics(step: Step, settings: TrainingSettings) -> dict[str, float]:
    old, sampled = step.update.logprobs, step.batch.sampled
    found = sampler_metrics(old[sampled], step.batch.sampler[sampled])
    if step.reference is not None:
        found |= kl_metrics(old[sampled], step.reference[sampled], settings.kl_estimator)
    if passes := step.update.passes:
        clip = (settings.clip, settings.epsilon_high)
        gains = step.advantages.flatten()
        found |= ratio_metrics(passes[-1][sampled], old[sampled])
        found |= clip_metrics(passes, old, sampled, gains, clip, settings.importance_sampling_level)
    return found


def _update_metrics(
    step: Step,
    group_std: Tensor,
    gains: Tensor | None,
    settings: TrainingSettings,
    stages: Stages,
) -> dict[str, float]:
    """What only the update knows; means over its optimizer steps. gains: the right advantages."""
    update = step.update
    if not update.losses:
        return {"loss": 0.0, "grad_norm": 0.0, "skipped_updates": settings.num_iterations}
    changes = {}
    if update.changes:
        changes = weights.change_metrics(update.changes)
        if step.policy.adapter is not None:
            changes["lora/norm"] = weights.lora_norm(step.policy)
    terms = loss_terms(update.logprobs, step.targets, step.totals, settings, stages)
    targets, totals = _right_targets(step, gains, settings)
    right = loss_terms(update.logprobs, targets, totals, settings, Stages())
    return {
        "loss": fmean(update.losses),
        "grad_norm": fmean(update.grad_norms),
        **changes,
        **gradient_metrics(terms, group_std),
        **gradient_error(terms, right),
    }


def _right_targets(
    step: Step, gains: Tensor | None, settings: TrainingSettings
) -> tuple[Targets, Totals]:
    """What the loss should have been given beside the trainer's log-probabilities."""
    mask = step.batch.sampled
    if settings.mask_truncated_completions:
        cut = torch.tensor([rollout.outcome == "token_limit" for rollout in step.rollouts])
        mask = without_truncated(mask, cut)
    advantages = step.advantages if gains is None else gains
    targets = replace(step.targets, advantages=advantages.flatten(), mask=mask)
    return targets, replace(step.totals, tokens=int(mask.sum()))
