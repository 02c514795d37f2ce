"""What a check says of one segment, of all of them, and of how the steps are set."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlvr_debug.files import read_yaml

BEGINNING = "the beginning"
_WHERE = re.compile(r"(generation|update|after update) (\d+)")
# NONE: the run has none of it, such as turns of tools; FAILED: a fault of the check or of a cause's folder
STATUSES = ("agrees", "deviates", "not seen", "none", "could not be computed")
AGREES, DEVIATES, NOT_SEEN, NONE, FAILED = STATUSES
_TEXTS: Mapping[str, Mapping[str, str]] = read_yaml(Path(__file__).parent / "consequences.yaml")
_T = TypeVar("_T")


class NotSeen(Exception):
    """Raised by a segment that cannot be looked at, with the reason in words."""


def need(known: object, why: str) -> None:
    if not known:
        raise NotSeen(why)


def seen(value: _T | None, why: str = "") -> _T:
    """Return what was recorded. Raise NotSeen where it was not."""
    if value is None:
        raise NotSeen(why)
    return value


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

    share: the largest deviation, as a share of its tolerance. deviation: in the segment's own unit; total: summed. ratio: how
    many times what it should be all of it is, by least squares. names: variants that give what was recorded. causes: slugs of
    hypotheses that it speaks for. where: the first instance that deviates. algorithms: known ones that give it. own: whose
    code lies in it; declared: what it was compared with instead of GRPO.
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


@dataclass(frozen=True)
class Consequence:
    """What was measured, and the bound it was held to; consequences.yaml has the rest.

    said: what is so out of the bound, as a sentence without its full stop. fix: what to change then.
    """

    name: str
    measured: Mapping[str, float]
    bound: str = field(init=False)
    reason: str = field(init=False)
    passed: bool
    said: str
    fix: str = field(init=False)

    def __post_init__(self) -> None:
        for name, text in _TEXTS[self.name].items():
            object.__setattr__(self, name, text)


def in_time_order(findings: Iterable[Finding], trained: Sequence[int]) -> tuple[Finding, ...]:
    """Return those that deviate, the earliest first. trained: of each update, the generation that it trains on, from 0."""

    def time(finding: Finding) -> tuple[float, float]:
        found = _WHERE.match(finding.where)
        if found is None:
            return (-1 if finding.where == BEGINNING else float("inf"), 0)
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
