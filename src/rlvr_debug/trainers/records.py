"""Rollouts that a program recorded, as the lines of rollouts.jsonl that our own trainer writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlvr_debug.data.rows import Row
from rlvr_debug.diagnostics.rollouts import token_texts
from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.trainers.conversation import rebuilt

__all__ = ["recorded_rollout", "rollout_rows"]


def recorded_rollout(
    row: Mapping[str, Any], rows: Mapping[str, Row], environment: Environment, chat: Chat
) -> Rollout:
    """row: a line of a program's rollouts.jsonl; log-probabilities that it does not tell are 0."""
    return rebuilt(
        rows[row["row"]],
        row["ids"],
        [bool(bit) for bit in row["sampled"]],
        row.get("logprobs", [0.0] * sum(row["sampled"])),
        environment,
        chat,
    )


def rollout_rows(
    recorded: Sequence[Mapping[str, Any]], rollouts: Sequence[Rollout], size: int, chat: Chat
) -> Iterator[dict[str, Any]]:
    """docs/diagnostics.md. What a program did not record is null; reward and parts are the environment's."""
    place, step = 0, 0
    for row, current in zip(recorded, rollouts, strict=True):
        place = place + 1 if row["step"] == step else 0
        step = row["step"]
        sampled = _sampled(row, current, chat)
        yield {
            "step": step,
            "group": place // size,
            "rollout": place,
            "row": row["row"],
            "reward": current.reward,
            "trained_reward": row["reward"],
            "parts": current.parts,
            "advantage": row.get("advantage"),
            "outcome": current.outcome,
            "turns": current.turns,
            "call_errors": dict(current.call_errors),
            "prompt_cut": current.prompt_cut,
            "sampled": sampled,
            "trained": {
                **sampled,
                "loss": "".join(map(str, row["loss"])) if "loss" in row else None,
                "attention": None,
                "trainer": None,
                "reference": None,
                "advantage": None,
            },
        }


def _sampled(row: Mapping[str, Any], current: Rollout, chat: Chat) -> dict[str, Any]:
    values = iter(row.get("logprobs", ()))
    return {
        "ids": row["ids"],
        "text": token_texts(row["ids"], chat),
        "role": "".join(s.role[0] * len(s.ids) for s in current.segments),
        "sampler": [next(values, None) if bit else None for bit in row["sampled"]],
    }
