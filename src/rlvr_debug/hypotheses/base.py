"""What a hypothesis is: a claimed cause, what would show it, and the mechanism that would have to be there.

Code elsewhere never asks which hypothesis it has: the effect of the arms is judged alike for all
(verdicts/decide.py), and the mechanism by the hypothesis' own function over the same evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PRIORITIES", "Evidence", "Finding", "Hypothesis", "probe_finding", "untested"]

PRIORITIES = ("critical", "high", "medium", "low")


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
    """kind: cause, or localiser (says where a failure occurs; never competes as a cause).

    number: in the original notes, where two were used twice. answer: the claim, once validated, in a plain
    sentence to the owner of the run. prerequisites: slugs that are tested in an
    earlier phase. interactions: slugs whose interventions may change this one's. simpler_learns: what a
    localiser claims of its simpler setting, that it learns while the case does not, or that it fails too.
    """

    slug: str
    number: str
    kind: str
    priority: str
    claim: str
    answer: str
    explanation: str
    root_cause: str
    methods: str
    diagnostics: str
    success: str
    invalidation: str
    alternatives: tuple[str, ...]
    cost: str
    next_steps: str
    mechanism: Callable[[Evidence], Finding]
    prerequisites: tuple[str, ...] = ()
    interactions: tuple[str, ...] = ()
    simpler_learns: bool = False


def probe_finding(evidence: Evidence, *probes: str) -> Finding:
    """The mechanism is present exactly when one of these probes fails."""
    missing = [name for name in probes if name not in evidence.probes]
    found = {name: evidence.probes[name] for name in probes if name not in missing}
    failed = [name for name, measurement in found.items() if not measurement["passed"]]
    text = "; ".join(
        [_sentence(name, measurement) for name, measurement in found.items()]
        + [f"probe {name} was not run" for name in missing]
    )
    return Finding(True if failed else None if missing else False, text)


def _sentence(name: str, measurement: Mapping[str, Any]) -> str:
    values = ", ".join(f"{key} {value:.3g}" for key, value in measurement["measured"].items())
    return f"probe {name} {'passes' if measurement['passed'] else 'fails'}: {values}"


def untested(evidence: Evidence) -> Finding:
    """Of a localiser, which has no mechanism."""
    return Finding(None, "")
