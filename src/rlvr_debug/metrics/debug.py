"""A step's figures under the names of the notes that this project starts from (github.com/bdsaglam/rlvr), as debug/*.

They are the trainer's own: its advantages, its KL estimate and its masks, right or wrong.

Axes: P prompts (groups), G rollouts per group, B = P x G sequences, T tokens.
"""

from __future__ import annotations

import torch

from rlvr_debug.grpo.training import Step
from rlvr_debug.metrics.conversations import roles

_NEAR = 10  # tokens from the limit that count as at it


def debug_metrics(step: Step) -> dict[str, float]:
    """Return debug/* of the step, before its update; the KL's and the reference's where there is one."""
    settings, batch = step.training.settings, step.experience.batch
    advantages = step.experience.targets.advantages
    rewards = torch.tensor([rollout.reward for rollout in step.rollouts])
    limit = settings.max_prompt_length
    prompts = [len(r.segments[0].ids) + r.prompt_cut for r in step.rollouts]
    near = sum(limit > 0 and length >= limit - _NEAR for length in prompts)
    lengths = batch.real.sum(1)
    counted = batch.loss & batch.sampled
    found = {
        "reward_std": float(rewards.view(-1, settings.group_size).std(1).mean()),
        "advantage_max": float(advantages.abs().max()),
        "advantage_mean": float(advantages.abs().mean()),
        "context_length_mean": float(lengths.float().mean()),
        "context_length_max": int(lengths.max()),
        "context_length_truncated": near,
        "context_length_truncation_rate": near / len(prompts),
        "active_tokens_count": int(batch.loss.sum()),
        "total_tokens_count": batch.loss.numel(),
        **{
            f"tokens/{role}": int(mask.sum())
            for role, mask in roles(batch.sampled, batch.real).items()
        },
    }
    if counted.any():
        found["policy_logp_mean"] = float(step.update.logprobs[counted].mean())
    if step.reference is not None and counted.any():
        logprobs, reference = step.update.logprobs[counted], step.reference[counted]
        kl = step.training.stages.kl(logprobs, reference, settings.kl_estimator)
        found["ref_logp_mean"] = float(reference.mean())
        found |= {f"kl_{name}": float(getattr(kl, name)()) for name in ("mean", "max", "min")}
    return {f"debug/{name}": value for name, value in found.items()}
