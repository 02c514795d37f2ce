"""GSM8K: one turn; the number after `####` or in `\\boxed{}` counts, whichever comes last."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rlvr_debug.environments import rewards
from rlvr_debug.environments.base import Environment, Transcript
from rlvr_debug.environments.gsm8k.rows import GSM8KRow

SYSTEM = "Solve the problem step by step. End with #### and the number."
_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")


class GSM8K(Environment):
    success = "correct"
    system = SYSTEM

    def __init__(self, *, max_new_tokens: int, weights: Mapping[str, float]) -> None:
        super().__init__(max_turns=1, max_new_tokens=max_new_tokens, weights=weights)

    def outcome(self, transcript: Transcript) -> str:
        return "no_answer" if final_answer(transcript.final) is None else "answered"

    def score(self, row: GSM8KRow, transcript: Transcript) -> dict[str, float]:
        final = final_answer(transcript.final)
        return {"correct": 0.0 if final is None else rewards.numbers_equal(final, row.final)}


def final_answer(reply: str) -> str | None:
    """What follows the last `####`, or what the last `\\boxed{}` holds if that begins later."""
    before, marker, answer = reply.rpartition("####")
    found = (len(before), answer) if marker else None
    opened: list[re.Match[str]] = []
    for brace in _BRACES.finditer(reply, len(before)):
        if brace.group() == "}" and opened:
            start = opened.pop()
            if start.group() != "{" and (found is None or start.start() > found[0]):
                found = (start.start(), reply[start.end() : brace.start()])
        elif brace.group() not in ("}", r"\{", r"\}"):
            opened.append(brace)
    return found[1] if found else None
