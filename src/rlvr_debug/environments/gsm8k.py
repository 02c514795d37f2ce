"""GSM8K: one turn; the number after `####` counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_debug.data.rows import GSM8KRow
from rlvr_debug.environments import rewards
from rlvr_debug.environments.base import Message, ToolCall, ToolResult, Transcript, combined_reward

__all__ = ["GSM8K", "SYSTEM"]

SYSTEM = "Solve the problem step by step. End with #### and the number."


class GSM8K:
    name = "gsm8k"
    max_turns = 1

    def __init__(self, *, max_new_tokens: int, weights: Mapping[str, float]) -> None:
        self.tools: list[dict[str, Any]] = []
        self.max_new_tokens = max_new_tokens
        self.weights = weights

    def messages(self, row: GSM8KRow) -> list[Message]:
        return [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": row.question},
        ]

    def call_tool(self, row: GSM8KRow, call: ToolCall) -> ToolResult:
        raise AssertionError("there are no tools")

    def outcome(self, transcript: Transcript) -> str:
        return "answered" if "####" in transcript.final else "no_answer"

    def score(self, row: GSM8KRow, transcript: Transcript) -> dict[str, float]:
        _, marker, final = transcript.final.rpartition("####")
        return {"correct": rewards.numbers_equal(final, row.final) if marker else 0.0}

    def reward(self, row: GSM8KRow, parts: Mapping[str, float]) -> float:
        return combined_reward(parts, self.weights)
