"""One turn, no tools: the word in the last `<answer>` counts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlvr_debug.environments.base import Environment, Message, Transcript

from .rows import ReverseRow

__all__ = ["Reverse"]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Reverse(Environment):
    success = "correct"

    def __init__(self, *, max_new_tokens: int, weights: Mapping[str, float]) -> None:
        super().__init__(max_turns=1, max_new_tokens=max_new_tokens, weights=weights)

    def messages(self, row: ReverseRow) -> list[Message]:
        return [{"role": "user", "content": f"Write backwards: {row.question}"}]

    def outcome(self, transcript: Transcript) -> str:
        return "answered" if _ANSWER.search(transcript.final) else "no_answer"

    def score(self, row: ReverseRow, transcript: Transcript) -> dict[str, float]:
        return {"correct": float(_ANSWER.findall(transcript.final)[-1:] == [row.answer])}
