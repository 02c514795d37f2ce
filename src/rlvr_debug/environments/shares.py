"""How many of made-up rows have each number of hops or steps."""

from __future__ import annotations

import random
from collections.abc import Mapping

from rlvr_debug.errors import InputError


def shares(setting: Mapping[str, float]) -> dict[int, float]:
    """Return a setting such as `{"2": 0.7, "3": 0.3}`, read from JSON, with numbers for keys."""
    return {int(number): share for number, share in setting.items()}


def check_shares(name: str, shares: Mapping[int, float], most: int) -> None:
    """Raise InputError unless some of the numbers 1 to `most` have a share."""
    if not set(shares) <= set(range(1, most + 1)) or sum(shares.values()) <= 0:
        raise InputError(f"{name} is {dict(shares)}, expected shares, not all 0, of 1 to {most}")


def draw(rng: random.Random, shares: Mapping[int, float]) -> int:
    """Draw a number by its share."""
    numbers = sorted(shares)  # the same shares in another order are the same shares
    return rng.choices(numbers, weights=[shares[number] for number in numbers])[0]
