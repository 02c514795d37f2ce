"""The stages of GRPO, each one pure function, and the bundle of them that a trainer runs.

    rollouts -> trained sequences -> masks -> advantages -> log-probabilities -> loss -> weight sync

A fault is another implementation of one stage (faults/); an intervention may swap a stage back.

Axes: B sequences, T tokens, P prompts (groups), G rollouts per group; B = P * G.
Sources: GRPO, Shao et al., arXiv 2402.03300; k3, Schulman, "Approximating KL Divergence" (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from rlvr_debug.sampling.rollouts import Rollout, Segment

__all__ = [
    "AGGREGATIONS",
    "SCALINGS",
    "Stages",
    "advantages",
    "attention_mask",
    "kl_k3",
    "loss_mask",
    "policy_loss",
    "sync",
    "trained_prompt",
    "trained_tool_turn",
]


def trained_prompt(rollout: Rollout, segment: Segment, env: Environment, chat: Chat) -> list[int]:
    """Ids of the prompt in the sequence that is trained on: those that were sampled from."""
    return segment.ids


def trained_tool_turn(segment: Segment, chat: Chat) -> list[int]:
    """Ids of a tool's turn in the sequence that is trained on: those that were sampled from."""
    return segment.ids


def loss_mask(sampled: Tensor, real: Tensor) -> Tensor:
    """Which tokens the loss counts, [B, T]: those that the model wrote (`sampled`), no others.

    sampled, real (not padding): bool [B, T].
    """
    return sampled & real


def attention_mask(sampled: Tensor, real: Tensor) -> Tensor:
    """What the policy may attend to, [B, T]: everything but padding. Arguments as in loss_mask."""
    return real


SCALINGS = ("group", "batch", "none")


def advantages(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    """Reward minus the group's mean, over the spread named by `scaling`: [P, G] -> [P, G].

    The standard deviation is the unbiased one, so an advantage scaled by its group's never exceeds
    (G - 1) / sqrt(G). arXiv 2402.03300, section 4.1.2; `none` is arXiv 2503.20783.
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    if scaling == "group":
        return centred / (rewards.std(1, keepdim=True) + epsilon)
    if scaling == "batch":
        return centred / (rewards.std() + epsilon)
    return centred


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference), unbiased and never negative: exp(d) - d - 1
    with d = log p_ref - log p. [B, T] each."""
    difference = reference - logprobs
    return difference.exp() - difference - 1


AGGREGATIONS = ("grpo", "bnpo", "dr_grpo")


def _aggregate(values: Tensor, mask: Tensor, aggregation: str, max_tokens: int) -> Tensor:
    if aggregation == "grpo":  # mean over each sequence's tokens, then over sequences
        return ((values * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
    if aggregation == "bnpo":  # mean over the batch's tokens
        return (values * mask).sum() / mask.sum().clamp(min=1)
    return (values * mask).sum() / (mask.shape[0] * max_tokens)  # dr_grpo: a constant


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    reference: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl: Callable[[Tensor, Tensor], Tensor],
    kl_beta: float,
    clip: float,
    aggregation: str,
    max_tokens: int,
) -> Tensor:
    """GRPO's clipped objective plus kl_beta times the KL term, negated to be minimised; a scalar.

    logprobs, old_logprobs, reference, mask: [B, T]; advantages: [B]. arXiv 2402.03300, equation 3.
    """
    ratio = (logprobs - old_logprobs).exp()
    gain = advantages[:, None]
    per_token = -torch.minimum(ratio * gain, ratio.clamp(1 - clip, 1 + clip) * gain)
    if reference is not None and kl_beta:
        per_token = per_token + kl_beta * kl(logprobs, reference)
    return _aggregate(per_token, mask.to(per_token.dtype), aggregation, max_tokens)


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
    kl: Callable[[Tensor, Tensor], Tensor] = kl_k3
    sync: Callable[[dict[str, Tensor], Qwen2Sampler], None] = sync

    def with_fault(self, stage: str, implementation: Callable[..., object]) -> Stages:
        return replace(self, **{stage: implementation})  # type: ignore[arg-type]
