"""What the trainer makes of the subject's rollouts at its first update.

Axes: P prompts (groups), G rollouts per group, B = P x G sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lab.probes.base import Subject
from rlvr_debug.grpo.advantages import batch_advantages
from rlvr_debug.grpo.loss import Experience, Targets
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.update import accumulate, batch_totals, reference_logprobs

__all__ = [
    "add_gradient",
    "advantages_of",
    "case_batch",
    "contrast",
    "first_update",
    "trained_scores",
]


def case_batch(subject: Subject) -> Batch:
    """Return what the case's trainer makes of the rollouts."""
    return subject.build(
        subject.rollouts,
        subject.stages,
        subject.environment,
        subject.chat,
        mask_truncated=subject.settings.mask_truncated_completions,
    )


def trained_scores(subject: Subject) -> tuple[list[Mapping[str, float]], Tensor]:
    """Return the reward parts of each rollout and the rewards, [B], by the trainer's own score stage.

    A KL in the reward is 0 before the first update.
    """
    environment = subject.environment
    scores = [subject.stages.score(r, environment) for r in subject.rollouts]
    if subject.rewards is not None:
        return scores, subject.rewards
    found = [environment.reward(r.row, s) for r, s in zip(subject.rollouts, scores, strict=True)]
    return scores, torch.tensor(found)


def advantages_of(subject: Subject, scores: list[Mapping[str, float]], rewards: Tensor) -> Tensor:
    """Return those of the case's own stage and settings, [P, G]. rewards: [B]."""
    return batch_advantages(
        scores,
        rewards,
        subject.environment.weights,
        subject.settings,
        subject.stages.advantages,
    )


def contrast(subject: Subject) -> Tensor:
    """Return advantages of +1 and -1 in turn, [B], whatever the rollouts earned: it may be all the same."""
    return 1.0 - 2.0 * (torch.arange(len(subject.rollouts)) % 2)


def first_update(subject: Subject, advantages: Tensor) -> Experience:
    """Return what the first update learns from. advantages: [B], in the order of the batch."""
    settings, stages, environment = subject.settings, subject.stages, subject.environment
    batch, reference = case_batch(subject), None
    if settings.kl_beta and settings.kl_place == "loss":
        reference = reference_logprobs(subject.policy, batch, settings, stages, Processes())
    targets = Targets(advantages, batch.loss, batch.sampled, batch.sampler, reference, None)
    limit = environment.max_new_tokens * environment.max_turns
    return Experience(batch, targets, batch_totals(batch, settings, limit, Processes()))


def add_gradient(subject: Subject, update: Experience) -> Tensor:
    """Add the loss' gradient to those of the weights. Return the policy's log-probabilities, [B, T]."""
    settings, stages = subject.settings, subject.stages
    _, logprobs = accumulate(subject.model, update, settings, stages, loss_of=subject.loss)
    return logprobs
