"""A word and the same word from behind, as a checked data class."""

from __future__ import annotations

from dataclasses import dataclass

from rlvr_debug.data.rows import Row, Text
from rlvr_debug.errors import InputError

__all__ = ["ReverseRow"]


@dataclass(frozen=True)
class ReverseRow(Row):
    """question: a word. answer: the word from behind."""

    id: Text
    question: Text
    answer: Text

    def check(self, where: str) -> None:
        if self.answer != self.question[::-1]:
            raise InputError(f"{where}: key 'answer' is not the question from behind, expected it")
