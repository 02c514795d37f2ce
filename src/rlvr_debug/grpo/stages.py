"""The stages of GRPO, each one pure function, and the bundle of them that a trainer runs.

    rollouts -> trained sequences -> masks -> advantages -> log-probabilities -> loss -> weight sync

A fault is another implementation of one stage (faults/); an intervention may swap a stage back.
docs/trainer.md lists every stage with its keys and its source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.advantages import advantages
from rlvr_debug.grpo.aggregation import Totals, aggregate
from rlvr_debug.grpo.kl import kl_estimate
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.masks import attention_mask, loss_mask
from rlvr_debug.grpo.ratio import clipped_objective, importance_ratio, importance_weights
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from rlvr_debug.sampling.rollouts import Rollout, Segment

__all__ = ["Stages", "sync", "trained_prompt", "trained_tool_turn"]


def trained_prompt(rollout: Rollout, segment: Segment, env: Environment, chat: Chat) -> list[int]:
    """Ids of the prompt in the sequence that is trained on: those that were sampled from."""
    return segment.ids


def trained_tool_turn(segment: Segment, chat: Chat) -> list[int]:
    """Ids of a tool's turn in the sequence that is trained on: those that were sampled from."""
    return segment.ids


def sync(weights: dict[str, Tensor], sampler: Qwen2Sampler) -> None:
    """Give the sampler the trainer's weights."""
    sampler.load(weights)


@dataclass(frozen=True)
class Stages:
    """One implementation per stage; the defaults are the right ones."""

    trained_prompt: Callable[[Rollout, Segment, Environment, Chat], list[int]] = trained_prompt
    trained_tool_turn: Callable[[Segment, Chat], list[int]] = trained_tool_turn
    loss_mask: Callable[[Tensor, Tensor], Tensor] = loss_mask
    attention_mask: Callable[[Tensor, Tensor], Tensor] = attention_mask
    advantages: Callable[[Tensor, str, float], Tensor] = advantages
    logprobs: Callable[..., Tensor] = token_logprobs
    importance_ratio: Callable[[Tensor, Tensor, Tensor, str], Tensor] = importance_ratio
    clipped_objective: Callable[[Tensor, Tensor, float, float, float], Tensor] = clipped_objective
    importance_weights: Callable[[Tensor, Tensor, Tensor, float], Tensor] = importance_weights
    kl: Callable[[Tensor, Tensor, str], Tensor] = kl_estimate
    aggregate: Callable[[Tensor, Tensor, Totals, str], Tensor] = aggregate
    sync: Callable[[dict[str, Tensor], Qwen2Sampler], None] = sync

    def with_fault(self, stage: str, implementation: Callable[..., object]) -> Stages:
        return replace(self, **{stage: implementation})  # type: ignore[arg-type]
