"""What the scripted policies of several environments have in common."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.task import Policy


def tool_call(name: str, **arguments: str) -> str:
    """Return a reply that calls a tool, as Hermes' models write it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def number_policies(
    oracle: Policy, answer: Callable[[Any], str], said: Callable[[str], str]
) -> dict[str, Policy]:
    """Return policies for questions whose answer is a number.

    answer: the right answer of a row. said: an answer in the format that counts.
    """

    def guesser(row: Row, turn: int) -> str:
        """Say a number of the question."""
        return said(random.Random(f"guess {row.id} {turn}").choice(_numbers(row)))

    return {
        "oracle": oracle,
        "answer without retrieval": lambda row, turn: said(answer(row)),
        "random": guesser,
        "copy the question": lambda row, turn: said(row.question),
        "citation spammer": lambda row, turn: said(" ".join(_numbers(row))),
        "format only": lambda row, turn: said("0"),
        "spoiler": lambda row, turn: said(_numbers(row)[0]),
    }


def _numbers(row: Row) -> list[str]:
    """Return the numbers of the question, at least one."""
    return re.findall(r"\d+", row.question) or ["0"]
