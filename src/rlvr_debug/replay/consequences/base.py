"""A consequence: what the recorded steps are as they were set, measured and held to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlvr_debug.files import read_yaml

__all__ = ["Consequence", "consequence"]

_TEXTS: Mapping[str, Mapping[str, str]] = read_yaml(Path(__file__).with_name("texts.yaml"))


@dataclass(frozen=True)
class Consequence:
    """What was measured, the bound that it was held to, and why that bound.

    passed: within the bound. said: what is so where it is not, as a sentence without its full stop. fix: what to change
    then.
    """

    name: str
    measured: Mapping[str, float]
    bound: str
    reason: str
    passed: bool
    said: str
    fix: str


def consequence(name: str, measured: Mapping[str, float], passed: bool, said: str) -> Consequence:
    """Return it with the bound, the reason and the fix that texts.yaml has."""
    text = _TEXTS[name]
    return Consequence(name, measured, text["bound"], text["reason"], passed, said, text["fix"])
