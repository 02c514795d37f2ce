"""What a check says of one segment, and of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_WHERE = re.compile(r"(generation|update|after update) (\d+)")
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
    here speaks for. seconds: what the check took. where: the first instance that deviates, in words. algorithms: names of
    known ones that give what was recorded. own: whose code lies in it; declared: what it was compared with instead of
    GRPO; "" for none.
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
    where: str = ""
    algorithms: tuple[str, ...] = ()
    own: str = ""
    declared: str = ""


def in_time_order(findings: Iterable[Finding], trained: Sequence[int]) -> tuple[Finding, ...]:
    """Return those that deviate, the earliest first; at one time, in the order of a step.

    trained: of each update, the generation that it trains on, from 0. What is of no single time comes last.
    """

    def time(finding: Finding) -> tuple[float, float]:
        found = _WHERE.match(finding.where)
        if found is None:
            return (float("inf"), 0)
        kind, number = found[1], int(found[2]) - 1
        if kind == "generation":
            return (number, -1)
        return (
            trained[number] if number < len(trained) else number,
            number + (kind != "update") / 2,
        )

    return tuple(sorted((each for each in findings if each.status == DEVIATES), key=time))


def unseen_text(segments: Iterable[Mapping[str, Any]]) -> str:
    """Return which segments nothing can be said of, as a part of a sentence; "" for none. segments: as in the answer."""
    found: dict[str, list[str]] = {NOT_SEEN: [], FAILED: []}
    told = [*segments]
    for each in told:
        if each["status"] in found:
            found[each["status"]].append(each["segment"])

    return "; ".join(
        f"{len(names)} of {len(told)} segments {'was' if len(names) == 1 else 'were'} not seen: {', '.join(names)}"
        if how == NOT_SEEN
        else f"{how}: {', '.join(names)}"
        for how, names in found.items()
        if names
    )
