"""Rollouts as conversations: lengths, ends, turns and tool calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlvr_debug.diagnostics.summaries import mean
from rlvr_debug.environments.base import CALL_ERRORS
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["conversation_metrics"]


def conversation_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Lengths are in tokens that the model wrote, of all its turns."""
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
