"""Some of a step's rollouts, token by token, as lines of rollouts.jsonl (docs/diagnostics.md).

The sequence that was sampled stands beside the one that was trained on: they should be the same.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlvr_debug.grpo.training import Step
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout

_DIGITS = 6


def rollout_records(step: Step, count: int, served: str = "") -> list[dict[str, Any]]:
    """Return a line for each of the first `count` rollouts. served: the policy that a server sampled with."""
    chat, advantages = step.training.chat, step.experience.targets.advantages
    size = step.training.settings.group_size
    return [
        {
            "step": step.number,
            **({"served": served} if served else {}),
            "group": b // size,
            "rollout": b,
            "row": rollout.row.id,
            "reward": rollout.reward,
            "parts": rollout.parts,
            "advantage": round(float(advantages[b]), _DIGITS),
            **as_sampled(rollout, _sampler(rollout), chat),
            "trained": _trained(b, step),
        }
        for b, rollout in enumerate(step.rollouts[:count])
    ]


def _sampler(rollout: Rollout) -> list[float | None]:
    values: list[float | None] = []
    for segment in rollout.segments:
        found = [round(value, _DIGITS) for value in segment.logprobs]
        values += found or [None] * len(segment.ids)
    return values


def as_sampled(rollout: Rollout, sampler: list[float | None], chat: Chat) -> dict[str, Any]:
    """Return how the rollout went and its sequence. sampler: a log-probability or None per token."""
    return {
        "outcome": rollout.outcome,
        "turns": rollout.turns,
        "call_errors": dict(rollout.call_errors),
        "prompt_cut": rollout.prompt_cut,
        "sampled": {
            "ids": rollout.ids,
            "text": token_texts(rollout.ids, chat),
            "role": "".join(segment.role[0] * len(segment.ids) for segment in rollout.segments),
            "sampler": sampler,
        },
    }


def _trained(b: int, step: Step) -> dict[str, Any]:
    batch, reference = step.experience.batch, step.reference
    length = int(batch.real[b].sum())
    sampled, counted = batch.sampled[b, :length], batch.loss[b, :length]
    known = counted | sampled
    known[0] = False  # the first token has no prediction
    ids = batch.ids[b, :length].tolist()
    roles = 2 * (sampled.cumsum(0) > 0) - sampled.long()
    advantages = step.experience.targets.advantages[b].expand(length)
    return {
        "ids": ids,
        "text": token_texts(ids, step.training.chat),
        "role": "".join("pat"[role] for role in roles.tolist()),
        "loss": _bits(counted),
        "attention": _bits(batch.attention[b, :length]),
        "sampler": _values(batch.sampler[b, :length], sampled),
        "trainer": _values(step.update.logprobs[b, :length], known),
        "reference": None if reference is None else _values(reference[b, :length], known),
        "advantage": _values(advantages, counted),
    }


def token_texts(ids: list[int], chat: Chat) -> list[str]:
    """Return the text of each token by itself."""
    texts = {token: chat.tokenizer.decode([token]) for token in set(ids)}
    return [texts[token] for token in ids]


def _bits(mask: Tensor) -> str:
    return "".join("01"[bit] for bit in mask.tolist())


def _values(values: Tensor, where: Tensor) -> list[float | None]:
    return [
        round(value, _DIGITS) if there else None
        for value, there in zip(values.tolist(), where.tolist(), strict=True)
    ]
