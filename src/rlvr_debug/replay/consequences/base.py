"""A consequence: what the recorded steps are as they were set, measured and held to a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlvr_debug.files import read_yaml

_TEXTS: Mapping[str, Mapping[str, str]] = read_yaml(Path(__file__).with_name("texts.yaml"))


@dataclass(frozen=True)
class Consequence:
    """What was measured, the bound that it was held to, and why that bound.

    passed: within the bound. said: what is so where it is not, as a sentence without its full stop. fix: what to change
    then. What texts.yaml has of it is found there.
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
