"""MuSiQue: multi-hop questions over the row's own paragraphs, and what scripted policies say of them."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlvr_debug.environments.musique.environment import MuSiQue
from rlvr_debug.environments.musique.retrieval import STRATEGIES
from rlvr_debug.environments.musique.rows import MuSiQueRow, synthetic_musique
from rlvr_debug.environments.task import Lengths, Policy, Task, shares, tool_call


def _oracle(row: MuSiQueRow, turn: int) -> str:
    """Look every hop up with its own question, then answer and cite as the row says."""
    if turn < row.hops:
        return _look_up(_hop_question(row, turn))
    return _final(row.answer, row.supporting)


def _guesser(row: MuSiQueRow, turn: int) -> str:
    """Look a random title up, then answer and cite at random."""
    paragraph = random.Random(f"guess {row.id} {turn}").choice(row.paragraphs)
    return _final(paragraph.title, [paragraph.idx]) if turn else _look_up(paragraph.title)


def _copier(row: MuSiQueRow, turn: int) -> str:
    """Look the question up, answer with the question, cite the first paragraph."""
    return _final(row.question, [row.paragraphs[0].idx]) if turn else _look_up(row.question)


def _spammer(row: MuSiQueRow, turn: int) -> str:
    """Look all titles up in three calls, answer and cite everything there is."""
    titles = [p.title for p in row.paragraphs]
    if turn < 3:
        return _look_up(" ".join(titles[turn::3]))
    return _final(" ".join(titles), [p.idx for p in row.paragraphs])


def _spoiler(row: MuSiQueRow, turn: int) -> str:
    """Answer the first distractor's title, and cite every paragraph that does not support."""
    distractors = [p for p in row.paragraphs if not p.is_supporting]
    return _final(distractors[0].title if distractors else "", [p.idx for p in distractors])


POLICIES: dict[str, Policy] = {
    "oracle": _oracle,
    "answer without retrieval": lambda row, turn: _final(row.answer, []),
    "random": _guesser,
    "copy the question": _copier,
    "citation spammer": _spammer,
    "format only": lambda row, turn: _final("", []),
    "spoiler": _spoiler,
}


def _look_up(query: str) -> str:
    return tool_call("retrieve_documents", query=query)


def _final(answer: str, cited: Sequence[int]) -> str:
    cites = "".join(f"[{idx}]" for idx in cited)
    return f"<answer>{answer}</answer>\n<cite>{cites}</cite>"


def _hop_question(row: MuSiQueRow, hop: int) -> str:
    """Return the single-hop question with `#k` replaced by the answer of hop k."""

    def earlier_answer(match: re.Match[str]) -> str:
        number = int(match.group(1))
        known = 1 <= number <= row.hops
        return row.question_decomposition[number - 1].answer if known else match.group()

    question = row.question_decomposition[hop].question
    return re.sub(r"#(\d+)", earlier_answer, question)


def _synthetic(settings: Mapping[str, Any]) -> Iterator[MuSiQueRow]:
    names = ("paragraphs", "same_relation", "seed", "heldout")
    others = {name: settings[name] for name in names}
    return synthetic_musique(settings["rows"], hops=shares(settings["hops"]), **others)


TASK = Task(
    row=MuSiQueRow,
    synthetic=_synthetic,
    build=MuSiQue,
    policies=POLICIES,
    # prompts, tool results and number of replies from rows (docs/scaling.md), replies assumed
    lengths=Lengths(prompt=250, reply=150, turns=3.4, tool=380),
    datasets="bdsaglam/musique-mini,answerable,train",
    flags={
        "--retriever": {"dest": "retrieval", "choices": STRATEGIES, "default": "bm25"},
        "--top-n": {"dest": "top_n", "type": int, "default": 3, "help": "paragraphs per call"},
        "--max-turns": {"dest": "max_turns", "type": int, "default": 10},
        "--noise-rate": {
            "dest": "noise_rate",
            "type": float,
            "default": 1.0,
            "help": "share of other paragraphs kept",
        },
    },
)
