"""A sample of a step's rollouts, token by token, as lines of rollouts.jsonl (docs/diagnostics.md).

The sequence that was sampled stands beside the one that was trained on: they should be the same.

Axes: B sequences, T tokens, of which n belong to a sequence.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlvr_debug.diagnostics.step import Step
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["rollout_records", "token_texts"]

_DIGITS = 6


def rollout_records(
    step: int, done: Step, chat: Chat, count: int, served: str = ""
) -> list[dict[str, Any]]:
    """One for each of the first `count` rollouts of the batch. served: the policy that a server sampled with."""
    size = done.advantages.shape[1]
    return [
        {
            "step": step,
            **({"served": served} if served else {}),
            "group": b // size,
            "rollout": b,
            "row": rollout.row.id,
            "reward": rollout.reward,
            "parts": rollout.parts,
            "advantage": _rounded(float(done.advantages[b // size, b % size])),
            "outcome": rollout.outcome,
            "turns": rollout.turns,
            "call_errors": dict(rollout.call_errors),
            "prompt_cut": rollout.prompt_cut,
            "sampled": _sampled(rollout, chat),
            "trained": _trained(b, done, chat),
        }
        for b, rollout in enumerate(done.rollouts[:count])
    ]


def _sampled(rollout: Rollout, chat: Chat) -> dict[str, Any]:
    values: list[float | None] = []
    for segment in rollout.segments:
        found = [_rounded(value) for value in segment.logprobs]
        values += found or [None] * len(segment.ids)
    return {
        "ids": rollout.ids,
        "text": token_texts(rollout.ids, chat),
        "role": "".join(segment.role[0] * len(segment.ids) for segment in rollout.segments),
        "sampler": values,
    }


def _trained(b: int, done: Step, chat: Chat) -> dict[str, Any]:
    batch, reference = done.batch, done.reference
    length = int(batch.real[b].sum())
    sampled, counted = batch.sampled[b, :length], batch.loss[b, :length]
    known = counted | sampled
    known[0] = False  # the first token has no prediction
    ids = batch.ids[b, :length].tolist()
    roles = 2 * (sampled.cumsum(0) > 0) - sampled.long()
    gains = done.advantages.flatten()[b].expand(length)
    return {
        "ids": ids,
        "text": token_texts(ids, chat),
        "role": "".join("pat"[role] for role in roles.tolist()),
        "loss": _bits(counted),
        "attention": _bits(batch.attention[b, :length]),
        "sampler": _values(batch.sampler[b, :length], sampled),
        "trainer": _values(done.update.logprobs[b, :length], known),
        "reference": None if reference is None else _values(reference[b, :length], known),
        "advantage": _values(gains, counted),
    }


def token_texts(ids: list[int], chat: Chat) -> list[str]:
    texts = {token: chat.tokenizer.decode([token]) for token in set(ids)}
    return [texts[token] for token in ids]


def _bits(mask: Tensor) -> str:
    return "".join("01"[bit] for bit in mask.tolist())


def _values(values: Tensor, where: Tensor) -> list[float | None]:
    return [
        _rounded(value) if there else None
        for value, there in zip(values.tolist(), where.tolist(), strict=True)
    ]


def _rounded(value: float) -> float:
    return round(value, _DIGITS)
