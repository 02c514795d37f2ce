"""The training loop of GRPO, for the tiny scale: one process, full fine-tuning, float32.

Not here, and why: several updates per batch, accumulation, LoRA, schedules, resuming and more than
one process belong to the trainer in full; with one update per batch the old policy is the policy,
so the ratio is 1 and clipping never acts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.data.rows import Row
from rlvr_debug.diagnostics.step import step_metrics
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages, policy_loss
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from rlvr_debug.sampling.rollouts import rollout

__all__ = ["TrainingResult", "train", "update_policy"]


@dataclass(frozen=True)
class TrainingResult:
    """weights: the trained model's; metrics and seconds: one mapping per step."""

    weights: dict[str, Tensor]
    metrics: list[dict[str, Any]]
    seconds: list[dict[str, float]]


def train(
    model: Any,
    reference: Any,
    sampler: Qwen2Sampler,
    chat: Chat,
    environment: Environment,
    rows: Sequence[Row],
    settings: TrainingSettings,
    stages: Stages,
    seed: int,
) -> TrainingResult:
    """Train `model` in place. Same arguments, same bytes of metrics.

    `sampler` starts with the model's weights; only the sync stage changes them afterwards.
    """
    rng = random.Random(f"training rows {seed}")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    metrics: list[dict[str, Any]] = []
    seconds: list[dict[str, float]] = []
    for step in range(settings.steps):
        started = time.perf_counter()
        prompts = rng.sample(rows, settings.prompts_per_step)
        sampler.reset()
        rollouts = rollout(
            [row for row in prompts for _ in range(settings.group_size)],
            environment,
            chat,
            sampler,
            temperature=settings.temperature,
            seed=rng.getrandbits(32),
        )
        sampled_at = time.perf_counter()
        rewards = torch.tensor([r.reward for r in rollouts]).view(-1, settings.group_size)
        advantages = stages.advantages(rewards, settings.scale_rewards, settings.advantage_epsilon)
        batch = build_batch(rollouts, stages, environment, chat)
        max_tokens = environment.max_new_tokens * environment.max_turns
        logprobs, update = update_policy(
            model, reference, optimizer, batch, advantages.flatten(), settings, stages, max_tokens
        )
        stages.sync(model.state_dict(), sampler)
        row = step_metrics(rollouts, rewards, advantages, batch, logprobs, update)
        metrics.append({"step": step + 1, **row})
        seconds.append(
            {
                "step": step + 1,
                "sampling": sampled_at - started,
                "update": time.perf_counter() - sampled_at,
            }
        )
    return TrainingResult(model.state_dict(), metrics, seconds)


def update_policy(
    model: Any,
    reference: Any,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    advantages: Tensor,
    settings: TrainingSettings,
    stages: Stages,
    max_tokens: int,
) -> tuple[Tensor, dict[str, float]]:
    """One optimizer step. advantages: [B]. Returns log-probabilities [B, T] before it, and metrics."""
    wanted = batch.loss | batch.sampled
    reference_logprobs = None
    if settings.kl_beta:
        with torch.no_grad():
            reference_logprobs = token_logprobs(
                reference, batch.ids, batch.attention, wanted, settings.temperature
            )
    logprobs = token_logprobs(model, batch.ids, batch.attention, wanted, settings.temperature)
    loss = policy_loss(
        logprobs,
        logprobs.detach(),
        reference_logprobs,
        advantages,
        batch.loss,
        kl=stages.kl,
        kl_beta=settings.kl_beta,
        clip=settings.clip,
        aggregation=settings.aggregation,
        max_tokens=max_tokens,
    )
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
    optimizer.step()
    update = {"loss": float(loss.detach()), "grad_norm": float(norm)}
    if reference_logprobs is not None:
        kl = stages.kl(logprobs.detach(), reference_logprobs)[batch.loss]
        update |= {"kl": float(kl.mean()), "kl/max": float(kl.max())}
    return logprobs.detach(), update
