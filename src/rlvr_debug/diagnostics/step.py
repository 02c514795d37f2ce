"""One training step as one row of metrics, under TRL's names where TRL has the quantity.

Computed from what was sampled (the environment's own masks and rewards, the sampler's
log-probabilities), so that a faulty stage cannot hide itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["step_metrics"]


def step_metrics(
    rollouts: list[Rollout],
    rewards: Tensor,
    advantages: Tensor,
    batch: Batch,
    logprobs: Tensor,
    update: Mapping[str, float],
) -> dict[str, Any]:
    """rewards, advantages: [P, G]; logprobs: the trainer's, [B, T], before the update.

    `update`: what only the update knows (loss, kl, grad_norm).
    """
    spread = rewards.std(1)
    gap = _sampler_gap(rollouts, batch, logprobs)
    parts = {
        f"rewards/{name}/mean": _mean([rollout.parts[name] for rollout in rollouts])
        for name in rollouts[0].parts
    }
    cut = [rollout.prompt_cut > 0 for rollout in rollouts]
    prompts = {"prompts/clipped_ratio": _mean(cut)} if any(cut) else {}
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(spread.mean()),
        "frac_reward_zero_std": float((spread == 0).float().mean()),
        **parts,
        "advantages/abs_max": float(advantages.abs().max()),
        "sampler_gap/mean_abs": float(gap.abs().mean()),
        "sampler_gap/max_abs": float(gap.abs().max()),
        "sampled_tokens": int(sum(sum(rollout.sampled) for rollout in rollouts)),
        "trained_tokens": int(batch.loss.sum()),
        "completions/mean_length": _mean([sum(rollout.sampled) for rollout in rollouts]),
        "completions/clipped_ratio": _mean([r.outcome == "token_limit" for r in rollouts]),
        "turns/mean": _mean([rollout.turns for rollout in rollouts]),
        "tools/failure_frequency": _mean([rollout.call_errors.total() for rollout in rollouts]),
        **prompts,
        **update,
    }


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))


def _sampler_gap(rollouts: list[Rollout], batch: Batch, logprobs: Tensor) -> Tensor:
    """Trainer's minus sampler's log-probability of every sampled token, [number of them]."""
    return logprobs[batch.sampled] - batch.sampler[batch.sampled]
