"""Samplers that follow a script instead of a model, through the same rollouts.

An oracle must earn everything, a spoiler that knows nothing must lose: else the reward is wrong.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence

from rlvr_debug.data.rows import CalculatorRow, GSM8KRow, MuSiQueRow, Row
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
    """Look every hop up with its own question, then answer and cite as the row says; or work it out."""
    match row:
        case GSM8KRow():
            return row.answer
        case CalculatorRow():
            return _number(row, row.answer) if turn else _call("calculate", expression=row.answer)
    if turn < row.hops:
        return _call("retrieve_documents", query=_hop_question(row, turn))
    return _final(row.answer, row.supporting)


def spoiler(row: Row, turn: int) -> str:
    """Answer the first entity (the first distractor's title, or the question's first number) and cite
    every paragraph that does not support."""
    if not isinstance(row, MuSiQueRow):
        return _number(row, _numbers(row)[0])
    distractors = [p for p in row.paragraphs if not p.is_supporting]
    return _final(distractors[0].title if distractors else "", [p.idx for p in distractors])


def guesser(row: Row, turn: int) -> str:
    """Look a random title up, then answer and cite at random; or say a number of the question."""
    rng = random.Random(f"guess {row.id} {turn}")
    if not isinstance(row, MuSiQueRow):
        return _number(row, rng.choice(_numbers(row)))
    paragraph = rng.choice(row.paragraphs)
    if turn == 0:
        return _call("retrieve_documents", query=paragraph.title)
    return _final(paragraph.title, [paragraph.idx])


def copier(row: Row, turn: int) -> str:
    """Look the question up, answer with the question, cite the first paragraph."""
    if not isinstance(row, MuSiQueRow):
        return _number(row, row.question)
    if turn == 0:
        return _call("retrieve_documents", query=row.question)
    return _final(row.question, [row.paragraphs[0].idx])


def spammer(row: Row, turn: int) -> str:
    """Look all titles up in three calls, answer and cite everything there is."""
    if not isinstance(row, MuSiQueRow):
        return _number(row, " ".join(_numbers(row)))
    titles = [p.title for p in row.paragraphs]
    if turn < 3:
        return _call("retrieve_documents", query=" ".join(titles[turn::3]))
    return _final(" ".join(titles), [p.idx for p in row.paragraphs])


def formatter(row: Row, turn: int) -> str:
    """Say nothing, in the right format."""
    return _final("", []) if isinstance(row, MuSiQueRow) else _number(row, "0")


def rememberer(row: Row, turn: int) -> str:
    """Know the answer, and neither work it out nor look it up nor cite it."""
    match row:
        case GSM8KRow():
            return _number(row, row.final)
        case CalculatorRow():
            return _number(row, row.answer)
    return _final(row.answer, [])


POLICIES: dict[str, Policy] = {
    "oracle": oracle,
    "answer without retrieval": rememberer,
    "random": guesser,
    "copy the question": copier,
    "citation spammer": spammer,
    "format only": formatter,
    "spoiler": spoiler,
}


def _numbers(row: Row) -> list[str]:
    """The numbers of the question, at least one."""
    return re.findall(r"\d+", row.question) or ["0"]


def _hop_question(row: MuSiQueRow, hop: int) -> str:
    """The single-hop question with `#k` replaced by the answer of hop k."""

    def earlier_answer(match: re.Match[str]) -> str:
        number = int(match.group(1))
        known = 1 <= number <= row.hops
        return row.question_decomposition[number - 1].answer if known else match.group()

    question = row.question_decomposition[hop].question
    return re.sub(r"#(\d+)", earlier_answer, question)


def _call(name: str, **arguments: str) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _final(answer: str, cited: Sequence[int]) -> str:
    cites = "".join(f"[{idx}]" for idx in cited)
    return f"<answer>{answer}</answer>\n<cite>{cites}</cite>"


def _number(row: GSM8KRow | CalculatorRow, text: str) -> str:
    return f"#### {text}" if isinstance(row, GSM8KRow) else f"<answer>{text}</answer>"
