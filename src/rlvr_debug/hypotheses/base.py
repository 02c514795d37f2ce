"""What a hypothesis is: a claimed cause, and the mechanism that would have to be there.

Code elsewhere never asks which hypothesis it has: the effect of the arms is judged alike for all
(verdicts/decide.py), and the mechanism by the hypothesis' own function over the same evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Evidence", "Finding", "Hypothesis", "probe_finding"]


@dataclass(frozen=True)
class Evidence:
    """probes: measurement by probe name, of the case; arms: one row per arm (verdicts.csv's source)."""

    probes: Mapping[str, Mapping[str, Any]]
    arms: pd.DataFrame


@dataclass(frozen=True)
class Finding:
    """Whether the mechanism is there (None: cannot be told), and the measurement that says so."""

    present: bool | None
    text: str


@dataclass(frozen=True)
class Hypothesis:
    """kind: cause, or localiser (says where a failure occurs; never competes as a cause)."""

    slug: str
    number: str
    kind: str
    priority: str
    claim: str
    explanation: str
    root_cause: str
    success: str
    invalidation: str
    alternatives: str
    next_steps: str
    mechanism: Callable[[Evidence], Finding]


def probe_finding(evidence: Evidence, probe: str) -> Finding:
    """The mechanism is present exactly when the probe fails."""
    if probe not in evidence.probes:
        return Finding(None, f"probe {probe} was not run")
    measurement = evidence.probes[probe]
    values = ", ".join(f"{name} {value:.3g}" for name, value in measurement["measured"].items())
    outcome = "passes" if measurement["passed"] else "fails"
    return Finding(not measurement["passed"], f"probe {probe} {outcome}: {values}")
