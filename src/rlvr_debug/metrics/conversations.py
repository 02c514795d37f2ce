"""Metrics of rollouts as conversations (lengths, ends, turns, tool calls) and as tokens, by role.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlvr_debug.environments.base import CALL_ERRORS
from rlvr_debug.metrics.summaries import mean
from rlvr_debug.sampling.rollouts import Rollout

if TYPE_CHECKING:
    from torch import Tensor

ROLES = ("prompt", "assistant", "tool", "padding")


def conversation_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return shares and means over the rollouts. Lengths count the tokens that the model wrote, in all turns."""
    calls = sum(rollout.transcript.calls for rollout in rollouts)
    errors = sum((rollout.call_errors for rollout in rollouts), Counter())
    outcomes = Counter(rollout.outcome for rollout in rollouts)
    cut = [rollout.prompt_cut > 0 for rollout in rollouts]
    lengths = [sum(rollout.sampled) for rollout in rollouts]
    ended = [n for n, r in zip(lengths, rollouts, strict=True) if r.outcome != "token_limit"]
    return {
        **_lengths("length", lengths),
        **_lengths("terminated_length", ended or [0]),
        "completions/clipped_ratio": outcomes["token_limit"] / len(rollouts),
        "turns/mean": mean([rollout.turns for rollout in rollouts]),
        "turns/max": max(rollout.turns for rollout in rollouts),
        "tools/call_frequency": calls / len(rollouts),
        "tools/failure_frequency": errors.total() / max(calls, 1),
        **{f"tools/failures/{kind}": errors[kind] / max(calls, 1) for kind in CALL_ERRORS},
        **{f"outcomes/{name}": outcomes[name] / len(rollouts) for name in sorted(outcomes)},
        **({"prompts/clipped_ratio": mean(cut)} if any(cut) else {}),
    }


def _lengths(name: str, lengths: Sequence[int]) -> dict[str, float]:
    return {
        f"completions/mean_{name}": mean(lengths),
        f"completions/min_{name}": min(lengths),
        f"completions/max_{name}": max(lengths),
    }


def roles(sampled: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return a mask for each of ROLES, bool [B, T]; every token is in one of them.

    sampled: what the model wrote; real: not padding. A tool's turn is all that follows a reply and was
    not sampled, with the generation prompt and whatever else the chat template adds.
    """
    answered = sampled.cumsum(1) > 0
    return {
        "prompt": real & ~answered,
        "assistant": sampled,
        "tool": real & answered & ~sampled,
        "padding": ~real,
    }


def token_metrics(loss: Tensor, sampled: Tensor, real: Tensor) -> dict[str, int]:
    """Return counts of tokens. loss: those that the trainer's loss counts. bool [B, T] each."""
    return {
        "sampled_tokens": int(sampled.sum()),
        "trained_tokens": int(loss.sum()),
        **{
            f"trained_tokens/{role}": int((loss & mask).sum())
            for role, mask in roles(sampled, real).items()
        },
    }
