"""Rows of MuSiQue in the official schema (Trivedi et al., TACL 2022), as checked data classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import PlainValidator, Strict
from pydantic_core import PydanticCustomError

from rlvr_debug.blocks import Flag
from rlvr_debug.data.rows import Row, Text
from rlvr_debug.errors import InputError, short


def _label(value: Any) -> int | str:
    if type(value) not in (int, str):
        raise PydanticCustomError("label", "string or integer")
    return value  # type: ignore[no-any-return]


_Index = Annotated[int, Strict()]


@dataclass(frozen=True)
class Paragraph:
    idx: _Index
    title: str
    paragraph_text: Text
    is_supporting: Flag


@dataclass(frozen=True)
class Hop:
    """A single-hop component of a question; `#k` in its question stands for the answer of hop k."""

    id: Annotated[int | str, PlainValidator(_label)]
    question: Text
    answer: Text
    paragraph_support_idx: _Index | None = None


@dataclass(frozen=True)
class MuSiQueRow(Row):
    id: Text
    paragraphs: Annotated[tuple[Paragraph, ...], MinLen(1)]
    question: Text
    question_decomposition: Annotated[tuple[Hop, ...], MinLen(1)]
    answer: Text
    answer_aliases: tuple[str, ...]
    answerable: Flag

    @property
    def hops(self) -> int:
        return len(self.question_decomposition)

    @property
    def components(self) -> tuple[str, ...]:
        """Return the names of the single-hop components."""
        return tuple(str(hop.id) for hop in self.question_decomposition)

    @property
    def supporting(self) -> tuple[int, ...]:
        return tuple(p.idx for p in self.paragraphs if p.is_supporting)

    def check(self, where: str) -> None:
        indices = [p.idx for p in self.paragraphs]
        if len(set(indices)) != len(indices):
            raise InputError(f"{where}: key 'paragraphs' repeats an idx, expected each once")
        if not self.supporting:
            raise InputError(f"{where}: no paragraph has is_supporting true, expected at least one")
        for i, hop in enumerate(self.question_decomposition):
            if hop.paragraph_support_idx not in (None, *indices):
                raise InputError(
                    f"{where}: question_decomposition[{i}]: paragraph_support_idx is "
                    f"{short(hop.paragraph_support_idx)}, expected the idx of a paragraph"
                )
