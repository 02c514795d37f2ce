"""What is said of a check before its first step: releases that nobody tried, arguments that were changed, what it needs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from rlvr_debug.recorders.trl.kept import ELEMENTS

__all__ = ["NEWEST", "Needs", "changed_note", "large_note", "needs_of", "version_note"]

NEWEST = {
    "trl": "1.16.0",
    "verifiers": "0.1.6.post0",
}  # of those that the check was tried with: envs/*.txt
_GIB = 2**30


def version_note(library: str, found: str) -> str:
    """Return what is said of a release that is newer than any that was tried; "" of others."""
    newest = NEWEST[library]
    if Version(found) <= Version(newest):
        return ""
    return (
        f"{library} {found} is newer than {newest}, the newest that this check was tried with: what it has changed may "
        "deviate, or not be seen"
    )


def changed_note(made: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return which arguments were changed between the trainer's making and its training; "" for none.

    Some are read when the trainer is made, and others in each step: only the script's author knows which were meant.
    """
    changed = [
        f"{name} from {made[name]!r} to {value!r}"
        for name, value in now.items()
        if name in made and repr(made[name]) != repr(value)
    ]
    if not changed:
        return ""
    return (
        f"after the trainer was made, the script changed {', '.join(changed)} in its arguments: what they say when "
        "training begins counts as asked for"
    )


@dataclass(frozen=True)
class Needs:
    """What the check of a large model needs beside the script: bytes of memory, and of disk."""

    memory: float
    disk: float


def needs_of(weights: int, trained: int, logits: int, steps: int) -> Needs:
    """Return what a check needs. weights, trained: numbers of the model; logits: of the rows that go through it together.

    The reference has all weights in float64, and logits as they are, divided, normalised, and as gradients of both. On
    disk lie the trained weights in float32 before the first step and after each.
    """
    return Needs(8.0 * weights + 5 * 8.0 * logits, 4.0 * trained * (steps + 1))


def large_note(rows: int, needs: Needs) -> str:
    """Return what is said of a large model's check. rows: of a batch, that go through the reference."""
    return (
        f"the model is large: {rows} rows of a batch, {ELEMENTS} numbers of each tensor, and the gradient of the last "
        f"layer are looked at; the check needs about {needs.memory / _GIB:.1f} GiB of memory beside the script's own, and "
        f"{needs.disk / _GIB:.1f} GiB in {tempfile.gettempdir()}"
    )
