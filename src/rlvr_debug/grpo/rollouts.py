"""What a step samples, and what it trains on of that. Only the main process does this.

Axes: B rollouts, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlvr_debug.data.rows import Row
from rlvr_debug.grpo.advantages import batch_advantages
from rlvr_debug.grpo.objective import penalized
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.training import TrainerState, Training
from rlvr_debug.sampling.base import Sampler
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
