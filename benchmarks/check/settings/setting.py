"""What a setting is: a healthy change to a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.check.case import Case

FIRST = "0.16.1"  # the release that the oldest settings are of


@dataclass(frozen=True)
class Setting:
    """`since` is the first TRL release that has it."""

    name: str
    apply: Callable[[Case], Case]
    since: str = FIRST


def told(name: str, since: str = FIRST, **config: Any) -> Setting:
    """Return the setting that tells GRPOConfig these arguments."""
    return Setting(name, lambda case: case.told(**config), since)


def setting(change: Callable[[Case], Case], since: str = FIRST) -> Setting:
    """Return the setting that a function makes, under the function's name."""
    return Setting(change.__name__.replace("_", "-"), change, since)
