"""Where a case differs from a healthy run, in a line: the first answer of a study, without torch and before any training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlvr_debug.replay.finding import DEVIATES, NOT_SEEN, unseen_text

__all__ = ["first_answer"]


def first_answer(answer: Mapping[str, Any]) -> str:
    """Return which segments of the case's first steps are not what a healthy run computes. answer: as answer_of returns it."""
    segments = answer["segments"]
    if all(each["status"] == NOT_SEEN for each in segments):
        return f"the case's first steps were not seen: {segments[0]['note']}"
    found = [_named(each) for each in segments if each["status"] == DEVIATES]
    but = unseen_text(segments)
    if not found:
        return f"the case's first steps are those of a healthy run{but}"
    return f"the case differs from a healthy run in: {', '.join(found)}{but}"


def _named(segment: Mapping[str, Any]) -> str:
    causes = list(dict.fromkeys(_causes(segment)))
    return f"{segment['segment']} ({' or '.join(causes) or 'nothing known'})"


def _causes(segment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the causes of variants that give what was computed; where none does, those that the segment speaks for."""
    if segment["names"]:
        yield from (name["cause"] for name in segment["names"])
    else:
        yield from segment["causes"]
