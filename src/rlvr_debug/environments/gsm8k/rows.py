"""Rows of GSM8K in the official schema (Cobbe et al., arXiv 2110.14168), as a checked data class."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlvr_debug.data.rows import Row, Text
from rlvr_debug.errors import InputError


@dataclass(frozen=True)
class GSM8KRow(Row):
    """A word problem, and its answer step by step with the number after `####`."""

    id: Text
    question: Text
    answer: Text

    @property
    def hops(self) -> int:
        """Return the number of calculations, `<<a*b=c>>`, at least 1."""
        return max(1, self.answer.count("<<"))

    @property
    def final(self) -> str:
        """Return what follows `####`."""
        return self.answer.rsplit("####", 1)[1].strip()

    def check(self, where: str) -> None:
        _, marker, final = self.answer.rpartition("####")
        if not marker or "#" in final or not re.search(r"\d", final):
            raise InputError(f"{where}: key 'answer' has no '#### number', expected it at the end")
