"""Reverse: say a word backwards. A whole environment, to be copied (docs/extend.md)."""

from __future__ import annotations

from rlvr_debug.environments.task import Lengths, Task

from .environment import Reverse
from .policies import POLICIES
from .rows import ReverseRow
from .synthetic import synthetic_reverse

__all__ = ["TASK"]

TASK = Task(
    row=ReverseRow,
    synthetic=lambda settings: synthetic_reverse(settings["rows"], seed=settings["seed"]),
    build=Reverse,
    policies=POLICIES,
    # assumed
    lengths=Lengths(prompt=30, reply=60, turns=1, tool=0),
)
