"""What scripted policies say: one that knows the answer, and some that know nothing."""

from __future__ import annotations

from rlvr_debug.environments.task import Policy

from .rows import ReverseRow

__all__ = ["POLICIES"]


def oracle(row: ReverseRow, turn: int) -> str:
    """Say the word from behind."""
    return f"<answer>{row.answer}</answer>"


def copier(row: ReverseRow, turn: int) -> str:
    """Say the question."""
    return f"<answer>{row.question}</answer>"


def formatter(row: ReverseRow, turn: int) -> str:
    """Say nothing, in the right format."""
    return "<answer></answer>"


POLICIES: dict[str, Policy] = {
    "oracle": oracle,
    "copy the question": copier,
    "spoiler": formatter,
}
