"""Arithmetic questions with their answers, as a checked data class."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlvr_debug.blocks import Count
from rlvr_debug.data.rows import Row, Text
from rlvr_debug.errors import InputError


@dataclass(frozen=True)
class CalculatorRow(Row):
    """An arithmetic question of `steps` operations; the answer is a whole number, decimal or fraction."""

    id: Text
    question: Text
    answer: Text
    steps: Count

    @property
    def hops(self) -> int:
        return self.steps

    def check(self, where: str) -> None:
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]+|/0*[1-9][0-9]*)?", self.answer):
            raise InputError(
                f"{where}: key 'answer' is no number, expected one like 12, -0.5 or 3/4"
            )
