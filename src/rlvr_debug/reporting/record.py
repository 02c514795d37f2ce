"""What the record of a study says beside its statistics: what each arm changes, and whether a fix is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from rlvr_debug.arms import Run

__all__ = ["Criterion", "changes", "fix", "success_criteria"]


def changes(run: Run, other: Run) -> str:
    """What `run` is told and `other` is not; empty if nothing."""
    return "; ".join(_changes(run, other))


def _changes(run: Run, other: Run) -> Iterator[str]:
    if run.environment != other.environment:
        yield f"environment {run.environment}"
    for fault in other.faults:
        if fault not in run.faults:
            yield f"without {fault}"
    for fault in run.faults:
        if fault not in other.faults:
            yield f"with {fault}"
    mine, others = asdict(run.training), asdict(other.training)
    for key, value in mine.items():
        if value != others[key]:
            yield f"{key} {others[key]} → {value}"
    for key in sorted({*run.rollouts, *other.rollouts}):
        if run.rollouts.get(key) != other.rollouts.get(key):
            yield f"rollouts' {key} {run.rollouts.get(key, 'as in evaluation')}"
    for key in sorted({*run.options, *other.options}):
        if run.options.get(key) != other.options.get(key):
            yield f"{key} {other.options.get(key, 'not given')} → {run.options.get(key, 'not given')}"


@dataclass(frozen=True)
class Criterion:
    """One of the original's five criteria of success. met: None where this study cannot say."""

    name: str
    measured: str
    met: bool | None


def fix(arms: pd.DataFrame) -> str:
    """The arm that is judged as the fix: the validated repair that gains most, else the control."""
    repairs = arms[(arms["design"] == "repair") & (arms["status"] == "validated")]
    return "control" if repairs.empty else str(repairs.sort_values("gain")["arm"].iloc[-1])


def success_criteria(
    arms: pd.DataFrame, runs: pd.DataFrame, verdicts: pd.DataFrame, settings: Mapping[str, Any]
) -> list[Criterion]:
    """Of the fix that was found. arms, runs, verdicts: as the CSV files; settings: minimum_effect."""
    arm = fix(arms)
    row = arms.set_index("arm").loc[arm]
    gains = runs[runs["arm"] == arm][["gain", "gain_greedy"]].min(axis=1)
    minimum = settings["minimum_effect"]
    causes = verdicts[(verdicts["kind"] == "cause") & (verdicts["status"] == "validated")]
    return [
        Criterion(
            "a steady upward trend of the training reward",
            f"{row['slope']:+.4f} [{row['slope_low']:+.4f}, {row['slope_high']:+.4f}] per step",
            bool(row["slope_low"] > 0),
        ),
        Criterion(
            "a gain over the baseline on held-out data",
            f"{row['gain']:+.3f} [{row['gain_low']:+.3f}, {row['gain_high']:+.3f}] sampled, "
            f"{row['gain_greedy']:+.3f} greedy",
            bool(row["gain_low"] > 0 and min(row["gain"], row["gain_greedy"]) >= minimum),
        ),
        Criterion(
            "the same over several seeds",
            f"{int((gains > 0).sum())} of {len(gains)} seeds gain, sampled and greedy",
            bool(len(gains) > 1 and (gains > 0).all()),
        ),
        Criterion(
            "an explanation of why the fix works", _explained(causes), bool(not causes.empty)
        ),
        Criterion("confirmed at full scale", "not run here", None),
    ]


def _explained(causes: pd.DataFrame) -> str:
    names: Sequence[str] = list(causes["hypothesis"])
    if not names:
        return "no cause is validated"
    return f"mechanism present and effect shown: {', '.join(names)}"
