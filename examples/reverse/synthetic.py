"""Words made up to be written backwards."""

from __future__ import annotations

import random
from collections.abc import Iterator

from .rows import ReverseRow

__all__ = ["synthetic_reverse"]


def synthetic_reverse(count: int, *, seed: int) -> Iterator[ReverseRow]:
    """Yield `count` rows; the same arguments give the same rows."""
    for number in range(count):
        rng = random.Random(f"reverse {seed} {number}")
        # no word that reads the same from behind, which a copy of the question would answer
        word = "ab" + "".join(rng.choices("cdefghij", k=6))
        yield ReverseRow(f"reverse_{number}", word, word[::-1])
