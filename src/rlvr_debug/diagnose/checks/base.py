"""What a check is: a pure function from a log to what it shows for one hypothesis, with the bound that it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlvr_debug.diagnose.logs import Array, Log

__all__ = [
    "LARGE",
    "MILD",
    "STOPS",
    "UNSEEN",
    "Check",
    "Finding",
    "Shown",
    "Status",
    "from_the_start",
    "trend",
]

# how much what is logged would explain of a run that does not learn
STOPS = 4  # by itself nothing can be learned
LARGE = 3  # the mechanism is there, and large
MILD = 2  # it is there
UNSEEN = 1  # no log can show or exclude it; the reward does not rise

Status = Literal["found", "fine", "unchecked"]


@dataclass(frozen=True)
class Shown:
    """strength: one of the four above, 0 if nothing was found; amount: in [0, 1], orders equal strengths."""

    strength: int
    measured: Mapping[str, float]
    sentence: str
    amount: float = 0.5


@dataclass(frozen=True)
class Check:
    """needs: alternatives, each a set of names that must all be logged (Log.has).

    threshold: the bound in words; reason: why that one, or its source. explains: checks whose finding
    follows from this one's, where both are there.
    """

    name: str
    slug: str
    needs: tuple[tuple[str, ...], ...]
    threshold: str
    reason: str
    run: Callable[[Log], Shown | None]
    explains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One check on one log. missing: what to log, where it could not be checked.

    explained_by: a check whose finding this one follows from; "" for a finding that counts.
    """

    check: Check
    status: Status
    shown: Shown | None = None
    missing: tuple[str, ...] = ()
    explained_by: str = ""


@dataclass(frozen=True)
class Trend:
    """Of a series: means of its first and last third, and their difference in standard errors."""

    first: float
    last: float
    z: float

    @property
    def change(self) -> float:
        return self.last - self.first


def from_the_start(shares: NDArray[Any]) -> float:
    """The mean of the first rows (a twentieth, at least one), or of all if that is less: what breaks later is
    the wreck of something else, or of what was solved; what mends itself no longer matters."""
    return float(min(shares[: max(1, shares.size // 20)].mean(), shares.mean()))


def trend(values: Array, fewest: int = 9) -> Trend | None:
    """None for fewer than `fewest` values: a third would have none to speak of."""
    if values.size < fewest:
        return None
    third = values.size // 3
    first, last = values[:third], values[-third:]
    error = float(np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / third))
    change = float(last.mean() - first.mean())
    scale = max(abs(float(first.mean())), abs(float(last.mean())), 1e-300)
    if error <= 1e-9 * scale:
        z = 0.0 if abs(change) <= 1e-9 * scale else float(np.sign(change)) * 1e9
    else:
        z = change / error
    return Trend(float(first.mean()), float(last.mean()), z)
