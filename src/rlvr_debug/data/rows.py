"""The official row schemas of MuSiQue and GSM8K, and the calculator's, as checked data classes.

MuSiQue: Trivedi et al., TACL 2022. GSM8K: Cobbe et al., arXiv 2110.14168.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from rlvr_debug.errors import InputError, short

__all__ = [
    "CalculatorRow",
    "GSM8KRow",
    "Hop",
    "MuSiQueRow",
    "Paragraph",
    "Row",
    "parse_calculator",
    "parse_gsm8k",
    "parse_musique",
]


@dataclass(frozen=True)
class Paragraph:
    idx: int
    title: str
    paragraph_text: str
    is_supporting: bool


@dataclass(frozen=True)
class Hop:
    """One single-hop component of a question; `#k` in its question is the answer of hop k."""

    id: int | str
    question: str
    answer: str
    paragraph_support_idx: int | None


@dataclass(frozen=True)
class MuSiQueRow:
    id: str
    paragraphs: tuple[Paragraph, ...]
    question: str
    question_decomposition: tuple[Hop, ...]
    answer: str
    answer_aliases: tuple[str, ...]
    answerable: bool

    @property
    def hops(self) -> int:
        return len(self.question_decomposition)

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the single-hop components, which splits must not share."""
        return tuple(str(hop.id) for hop in self.question_decomposition)

    @property
    def supporting(self) -> tuple[int, ...]:
        return tuple(p.idx for p in self.paragraphs if p.is_supporting)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class GSM8KRow:
    """The official schema has no id: it is `gsm8k-<line number>` unless the row carries one."""

    id: str
    question: str
    answer: str

    @property
    def hops(self) -> int:
        """Calculation steps, `<<a*b=c>>`, at least 1."""
        return max(1, self.answer.count("<<"))

    @property
    def components(self) -> tuple[str, ...]:
        return ()

    @property
    def final(self) -> str:
        """What follows `####`."""
        return self.answer.rsplit("####", 1)[1].strip()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CalculatorRow:
    """An arithmetic question of `steps` operations; the answer is a whole number, decimal or fraction."""

    id: str
    question: str
    answer: str
    steps: int

    @property
    def hops(self) -> int:
        return self.steps

    @property
    def components(self) -> tuple[str, ...]:
        return ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Row = MuSiQueRow | GSM8KRow | CalculatorRow


def _field(row: dict[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    if key not in row:
        raise InputError(f"{where}: key '{key}' is missing, expected {_name(kind)}")
    value = row[key]
    # bool is an int in Python; an answer of `true` or an idx of `false` is a broken row
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(
            f"{where}: key '{key}' is {type(value).__name__} {short(value)}, expected {_name(kind)}"
        )
    # JSON can spell half a character, which no file can hold
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise InputError(f"{where}: key '{key}' holds a lone surrogate, expected Unicode")
    return value


def _name(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("null" if k is type(None) else k.__name__ for k in kinds)


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value: str = _field(row, key, str, where)
    if not value.strip():
        raise InputError(f"{where}: key '{key}' is empty, expected text")
    return value


def _objects(row: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = _field(row, key, list, where)
    if not values:
        raise InputError(f"{where}: key '{key}' is empty, expected at least one object")
    for i, value in enumerate(values):
        if not isinstance(value, dict):
            raise InputError(f"{where}: {key}[{i}] is {type(value).__name__}, expected an object")
    return values


def parse_musique(row: dict[str, Any], where: str) -> MuSiQueRow:
    """Check one row of the official schema; `where` (file:line) begins every error."""
    identity = _text(row, "id", where)
    paragraphs = []
    for i, item in enumerate(_objects(row, "paragraphs", where)):
        place = f"{where}: paragraphs[{i}]"
        paragraphs.append(
            Paragraph(
                idx=_field(item, "idx", int, place),
                title=_field(item, "title", str, place),
                paragraph_text=_text(item, "paragraph_text", place),
                is_supporting=_field(item, "is_supporting", bool, place),
            )
        )
    indices = [p.idx for p in paragraphs]
    if len(set(indices)) != len(indices):
        raise InputError(f"{where}: key 'paragraphs' repeats an idx, expected each once")
    if not any(p.is_supporting for p in paragraphs):
        raise InputError(f"{where}: no paragraph has is_supporting true, expected at least one")
    hops = []
    for i, item in enumerate(_objects(row, "question_decomposition", where)):
        place = f"{where}: question_decomposition[{i}]"
        support = _field(
            {"paragraph_support_idx": None, **item},
            "paragraph_support_idx",
            (int, type(None)),
            place,
        )
        if support is not None and support not in indices:
            raise InputError(
                f"{place}: paragraph_support_idx is {short(support)}, expected the idx of a paragraph"
            )
        hops.append(
            Hop(
                id=_field(item, "id", (int, str), place),
                question=_text(item, "question", place),
                answer=_text(item, "answer", place),
                paragraph_support_idx=support,
            )
        )
    aliases = {
        f"answer_aliases[{i}]": alias
        for i, alias in enumerate(_field(row, "answer_aliases", list, where))
    }
    return MuSiQueRow(
        id=identity,
        paragraphs=tuple(paragraphs),
        question=_text(row, "question", where),
        question_decomposition=tuple(hops),
        answer=_text(row, "answer", where),
        answer_aliases=tuple(_field(aliases, key, str, where) for key in aliases),
        answerable=_field(row, "answerable", bool, where),
    )


def parse_gsm8k(row: dict[str, Any], where: str) -> GSM8KRow:
    """Check one row of the official schema; `where` (file:line) begins every error."""
    answer = _text(row, "answer", where)
    _, marker, final = answer.rpartition("####")
    if not marker or "#" in final or not re.search(r"\d", final):
        raise InputError(f"{where}: key 'answer' has no '#### number', expected it at the end")
    line = where.rsplit(":", 1)[-1]
    identity = _text(row, "id", where) if "id" in row else f"gsm8k-{line}"
    return GSM8KRow(id=identity, question=_text(row, "question", where), answer=answer)


def parse_calculator(row: dict[str, Any], where: str) -> CalculatorRow:
    """Check one row; `where` (file:line) begins every error."""
    answer, steps = _text(row, "answer", where), _field(row, "steps", int, where)
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+|/0*[1-9][0-9]*)?", answer):
        raise InputError(f"{where}: key 'answer' is no number, expected one like 12, -0.5 or 3/4")
    if steps < 1:
        raise InputError(f"{where}: key 'steps' is {steps}, expected at least 1")
    return CalculatorRow(_text(row, "id", where), _text(row, "question", where), answer, steps)
