"""MuSiQue: answer a multi-hop question by retrieving from the row's own paragraphs, and cite them; and what scripts say of a row."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlvr_debug.environments import rewards
from rlvr_debug.environments.base import Environment, ToolCall, ToolResult, Transcript, tool
from rlvr_debug.environments.musique.retrieval import (
    STRATEGIES,
    Retriever,
    build_retrieval,
    with_noise,
)
from rlvr_debug.environments.musique.rows import MuSiQueRow, synthetic_musique
from rlvr_debug.environments.musique.settings import Settings
from rlvr_debug.environments.task import Lengths, Task, shares, tool_call

SYSTEM = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. "
    "Then answer, and cite the documents that you used: <answer>...</answer>\n<cite>[1][2]</cite>"
)
SYSTEM_COMPLETE = (
    "Answer the question. Look up what you need with retrieve_documents, one fact at a time. "
    "Then call complete with the answer and the numbers of the documents that you used."
)
TOOL = tool(
    "retrieve_documents",
    "Find the documents that best match a query.",
    query=("string", "What to look for."),
)
COMPLETE = tool(
    "complete",
    "Give the answer, which ends the conversation.",
    answer=("string", "The answer, in a few words."),
    citations=(
        {"type": "array", "items": {"type": "integer"}},
        "Numbers of the documents that the answer rests on.",
    ),
)
_CITE = re.compile(r"<cite>(.*?)</cite>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ANSWERED, _CITED = r"\s*<answer>[^<]*</answer>\s*", r"\s*<cite>[^<]*</cite>\s*"
_FORMAT = re.compile(f"{_ANSWERED}{_CITED}|{_CITED}{_ANSWERED}")


class MuSiQue(Environment):
    """The environment of the original case; reward weights as there (params.yaml).

    It is built with the keys of Settings. answer_by: `tags` in the last reply, or a call of the tool `complete`.
    hop_factor: multiply the reward by half the number of hops, as the original does.
    """

    success = "exact_match"

    def __init__(self, **given: Any) -> None:
        settings = Settings(**given)
        super().__init__(
            max_turns=settings.max_turns,
            max_new_tokens=settings.max_new_tokens,
            weights=settings.weights,
        )
        self._settings = settings
        self._by_call = settings.answer_by == "complete"
        self.system = SYSTEM_COMPLETE if self._by_call else SYSTEM
        self.tools = [TOOL, COMPLETE] if self._by_call else [TOOL]
        self._build = build_retrieval(settings.retrieval, settings.retrieval_model)
        self._retrievers: dict[int, tuple[MuSiQueRow, Retriever, dict[str, ToolResult]]] = {}

    def call_tool(self, row: MuSiQueRow, call: ToolCall) -> ToolResult:
        if call.name == "complete":
            return ToolResult("", ends=True)
        # the row is kept with its entry, so that its id() cannot be given to another row
        entry = self._retrievers.get(id(row))
        if entry is None:
            if len(self._retrievers) >= 4096:
                self._retrievers.clear()
            settings = self._settings
            known = with_noise(row, settings.noise_rate, settings.noise_seed)
            entry = (row, self._build(known, settings.top_n), {})
            self._retrievers[id(row)] = entry
        _, retrieve, results = entry
        query = call.arguments["query"]
        if query not in results:
            found = set(retrieve(query))
            # in the row's order, not by score: the rank would tell which one matches
            shown = [p for p in row.paragraphs if p.idx in found]
            text = "\n\n".join(f"[{p.idx}] {p.title}\n{p.paragraph_text}" for p in shown)
            results[query] = ToolResult(text, tuple(p.idx for p in shown))
        return results[query]

    def outcome(self, transcript: Transcript) -> str:
        if self._by_call:
            answered = transcript.submitted is not None
            cited = bool(transcript.submitted and transcript.submitted["citations"])
        else:
            answered = _ANSWER.search(transcript.final) is not None
            cited = _CITE.search(transcript.final) is not None
        if not answered:
            return "no_answer"
        return "answered" if cited else "answered_without_citation"

    def score(self, row: MuSiQueRow, transcript: Transcript) -> dict[str, float]:
        answers, cited, well_formed = self._given(transcript)
        expected = [row.answer, *row.answer_aliases]
        return {
            "exact_match": sum(rewards.exact_match(answer, expected) for answer in answers),
            "f1": sum(rewards.token_f1(answer, expected) for answer in answers),
            "recall": rewards.recall(transcript.retrieved, row.supporting),
            "precision": rewards.precision(transcript.retrieved, row.supporting),
            "citation": rewards.citation_f1(cited, list(map(str, row.supporting))),
            "format": float(well_formed),
        }

    def _given(self, transcript: Transcript) -> tuple[list[str], set[str], bool]:
        """At most one answer, the paragraphs cited, and whether both stand where they should."""
        if self._by_call:
            submitted = transcript.submitted
            if submitted is None:
                return [], set(), False
            # 3.0 is an integer in JSON
            return [submitted["answer"]], {str(int(n)) for n in submitted["citations"]}, True
        reply = transcript.final
        # a number that is no index stays a wrong citation, however long it is
        cited = {n.lstrip("0") or "0" for c in _CITE.findall(reply) for n in re.findall(r"\d+", c)}
        return _ANSWER.findall(reply)[-1:], cited, _FORMAT.fullmatch(reply) is not None

    def reward(self, row: MuSiQueRow, parts: Mapping[str, float]) -> float:
        reward = super().reward(row, parts)
        return reward * row.hops / 2 if self._settings.hop_factor else reward


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
    policies={
        "oracle": _oracle,
        "answer without retrieval": lambda row, turn: _final(row.answer, []),
        "random": _guesser,
        "copy the question": _copier,
        "citation spammer": _spammer,
        "format only": lambda row, turn: _final("", []),
        "spoiler": _spoiler,
    },
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
