"""What other trainers call the quantities that the checks read: names.yaml beside this file."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

__all__ = [
    "completion_names",
    "frameworks",
    "names_of",
    "part_of",
    "quantities",
    "resolve",
    "units",
]

_TABLE = Path(__file__).with_name("names.yaml")
_PREFIXES = ("train/", "global/")
# verl's validation score of one source of questions
_HELDOUT = re.compile(r"val-core/.+/(acc|reward|score)/mean@[0-9]+")
# the mean and the standard deviation of one part of the reward, as TRL and its forks log them
_PART = re.compile(r"rewards/(?P<part>.+?)(?:/(?P<what>mean|std))?")


@functools.cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return table


def frameworks() -> Mapping[str, str]:
    """Each with the place where its names were read."""
    found: Mapping[str, str] = _table()["frameworks"]
    return found


def quantities() -> tuple[str, ...]:
    return tuple(_table()["quantities"])


def units() -> Mapping[str, str]:
    return {name: entry["unit"] for name, entry in _table()["quantities"].items()}


def names_of(quantity: str) -> Mapping[str, Sequence[str]]:
    """Its names by framework."""
    found: Mapping[str, Sequence[str]] = _table()["quantities"][quantity]["names"]
    return found


def completion_names() -> Mapping[str, Sequence[str]]:
    """Names of the columns of a table of completions."""
    found: Mapping[str, Sequence[str]] = _table()["completions"]
    return found


@functools.cache
def _by_name() -> Mapping[str, tuple[str, int]]:
    """Lower-case name -> quantity, and its place in the table: the least one counts."""
    found: dict[str, tuple[str, int]] = {}
    for quantity in quantities():
        names = [name for each in names_of(quantity).values() for name in each]
        for place, name in enumerate(names):
            found.setdefault(name.lower(), (quantity, place))
    return found


def _plain(name: str) -> list[str]:
    """The name as the table may have it: as it is, or without a prefix that says nothing."""
    low = name.strip().lower()
    return [low, *(low[len(prefix) :] for prefix in _PREFIXES if low.startswith(prefix))]


def resolve(name: str) -> tuple[str, int] | None:
    """The quantity that a column holds, and its rank among columns of the same quantity."""
    for candidate in _plain(name):
        if candidate in _by_name():
            return _by_name()[candidate]
        if _HELDOUT.fullmatch(candidate):
            return "heldout", len(_by_name())
    return None


def part_of(name: str) -> tuple[str, str] | None:
    """(part, mean or std) where the column is of one part of the reward."""
    for candidate in _plain(name):
        match = _PART.fullmatch(candidate)
        if match and match["part"] not in ("mean", "std", "min", "max"):
            return match["part"], match["what"] or "mean"
    return None
