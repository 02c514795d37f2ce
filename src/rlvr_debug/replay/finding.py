"""What a check says of one segment, and of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "AGREES",
    "DEVIATES",
    "FAILED",
    "NONE",
    "NOT_SEEN",
    "STATUSES",
    "Finding",
    "Name",
    "NotSeen",
    "Place",
    "first_deviation",
    "unseen_text",
]

# NONE: the run has none of it, such as turns of tools; FAILED: a fault of the check or of a cause's folder
STATUSES = ("agrees", "deviates", "not seen", "none", "could not be computed")
AGREES, DEVIATES, NOT_SEEN, NONE, FAILED = STATUSES


class NotSeen(Exception):
    """Raised by a segment that cannot be looked at, with the reason in words."""


@dataclass(frozen=True)
class Name:
    """A variant that gives what was recorded. cause: the slug of the hypothesis that it belongs to."""

    name: str
    cause: str


@dataclass(frozen=True)
class Place:
    """A token of a rollout that deviates: the generation, its row, and the token's place in the completion."""

    generation: int
    row: int
    token: int


@dataclass(frozen=True)
class Finding:
    """What a check says of a segment.

    share: the largest deviation, as a share of its tolerance; above 1 it deviates. deviation: the same in the
    segment's own unit. total: the sum of the deviations of all instances that deviate. ratio: how many times what it
    should be all of it is, by least squares, None where it is no number. names: variants that give what was recorded. causes: slugs of the hypotheses that a deviation
    here speaks for. seconds: what the check took.
    """

    segment: str
    status: str
    share: float = 0.0
    deviation: float = 0.0
    total: float = 0.0
    ratio: float | None = None
    names: tuple[Name, ...] = ()
    note: str = ""
    causes: tuple[str, ...] = ()
    places: tuple[Place, ...] = field(default=(), repr=False)
    seconds: float = 0.0


def first_deviation(findings: Sequence[Finding]) -> Finding | None:
    """Return the first that deviates in the order of a step; what follows may follow from it."""
    return next((each for each in findings if each.status == DEVIATES), None)


def unseen_text(segments: Iterable[Mapping[str, Any]]) -> str:
    """Return which segments nothing can be said of, as the end of a sentence. segments: as the answer has them."""
    found: dict[str, list[str]] = {NOT_SEEN: [], FAILED: []}
    for each in segments:
        if each["status"] in found:
            found[each["status"]].append(each["segment"])
    return "".join(f"; {how}: {', '.join(names)}" for how, names in found.items() if names)
