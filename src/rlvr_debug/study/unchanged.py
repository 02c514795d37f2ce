"""Which arms change nothing in effect, known before any of them is trained: their first steps are to the byte those of
what they are compared with.

Only of arms that differ in stages alone: a changed setting is always trained. And only where the trainer's first steps
can be taken in one process as its runs take them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr_debug.causes.unnamed import BLOCKS
from rlvr_debug.trainers.base import CHECKED_STEPS, Job, Run, Traced, Trainer

__all__ = ["Checking", "compared", "unchanged"]


@dataclass(frozen=True)
class Checking:
    """What the check of a case is told. compared: by arm, its job and that of what it is compared with."""

    job: Job
    compared: Mapping[str, tuple[Job, Job]]


def compared(runs: Sequence[Run]) -> dict[str, tuple[Run, Run]]:
    """Return by arm that differs in stages alone: its first run, and that of the case or, of one alone, of the control."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.arm, run)
    return {name: pair for name, pair in _pairs(first) if _in_stages_alone(*pair)}


def _pairs(first: Mapping[str, Run]) -> Iterator[tuple[str, tuple[Run, Run]]]:
    main = first["case"].environment if "case" in first else ""
    for name, run in first.items():
        if run.design in ("alone", "repair") and run.environment == main:
            yield name, (run, first["control" if run.design == "alone" else "case"])


def _in_stages_alone(run: Run, other: Run) -> bool:
    return run.faults != other.faults and all(
        getattr(run, block) == getattr(other, block) for block in BLOCKS
    )


def unchanged(pairs: Mapping[str, tuple[Job, Job]], trainer: Trainer) -> list[dict[str, Any]]:
    """Return the arms whose first steps are those of what they are compared with, each with its hypothesis.

    Where a part alone changes something in the control, what mends it is taken to change something in the case.
    """
    digests: dict[str, str] = {}

    def digest(job: Job) -> str:
        assert isinstance(trainer, Traced)
        # what is told the same is run once
        if job.run.trained_as not in digests:
            digests[job.run.trained_as] = trainer.trace(job, CHECKED_STEPS)
        return digests[job.run.trained_as]

    found: dict[str, Run] = {}
    for name, (job, other) in sorted(pairs.items(), key=lambda each: each[1][0].run.design):
        tried = pairs.get(f"{name}-alone")
        if tried and f"{name}-alone" not in found:
            continue
        if digest(job) == digest(other):
            found[name] = job.run
    return [{"arm": name, "hypothesis": run.hypothesis} for name, run in sorted(found.items())]
