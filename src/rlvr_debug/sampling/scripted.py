"""Samplers that follow a script instead of a model, through the same rollouts.

An oracle must earn everything, a spoiler that knows nothing must lose: else the reward is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from rlvr_debug.data.rows import GSM8KRow, MuSiQueRow, Row
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat

__all__ = ["POLICIES", "Policy", "ScriptedSampler"]

Policy = Callable[[Row, int], str]


class ScriptedSampler:
    """Encodes what `policy` says of a request's row in its turn (from 0)."""

    def __init__(self, policy: Policy, chat: Chat) -> None:
        self._policy, self._chat = policy, chat
        self._turns: dict[int, int] = {}

    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        """Scripts are never cut: `max_new_tokens` limits models."""
        samples = []
        for request in requests:
            turn = self._turns.get(request.slot, 0)
            self._turns[request.slot] = turn + 1
            ids = [*self._chat.encode(self._policy(request.row, turn)), self._chat.eos_id]
            samples.append(Sample(ids, [0.0] * len(ids), stopped=True))
        return samples


def oracle(row: Row, turn: int) -> str:
    """Look every hop up with its own question, then answer and cite as the row says."""
    if isinstance(row, GSM8KRow):
        return row.answer
    if turn < row.hops:
        return _call(_hop_question(row, turn))
    return _final(row.answer, row.supporting)


def spoiler(row: Row, turn: int) -> str:
    """Answer the first entity (the first distractor's title, or the question's first number) and cite
    every paragraph that does not support."""
    if isinstance(row, GSM8KRow):
        number = re.search(r"\d+", row.question)
        return f"#### {number.group() if number else 0}"
    distractors = [p for p in row.paragraphs if not p.is_supporting]
    return _final(distractors[0].title if distractors else "", [p.idx for p in distractors])


POLICIES: dict[str, Policy] = {"oracle": oracle, "spoiler": spoiler}


def _hop_question(row: MuSiQueRow, hop: int) -> str:
    """The single-hop question with `#k` replaced by the answer of hop k."""

    def earlier_answer(match: re.Match[str]) -> str:
        number = int(match.group(1))
        known = 1 <= number <= row.hops
        return row.question_decomposition[number - 1].answer if known else match.group()

    question = row.question_decomposition[hop].question
    return re.sub(r"#(\d+)", earlier_answer, question)


def _call(query: str) -> str:
    call = json.dumps(
        {"name": "retrieve_documents", "arguments": {"query": query}}, ensure_ascii=False
    )
    return f"<tool_call>\n{call}\n</tool_call>"


def _final(answer: str, cited: tuple[int, ...] | list[int]) -> str:
    cites = "".join(f"[{idx}]" for idx in cited)
    return f"<answer>{answer}</answer>\n<cite>{cites}</cite>"
