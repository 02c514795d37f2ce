"""Which arms change nothing, and need not be trained: to the byte each would be the runs of the case or of the control.

Only arms that differ in stages alone: a changed setting is always trained. While the case and the control are trained,
their stages are computed as the other one has them too (grpo/shadow.py); what is not compared there is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.causes.unnamed import BLOCKS
from rlvr_debug.files import read_json
from rlvr_debug.trainers.base import SHADOW, Run


@dataclass(frozen=True)
class Comparing:
    """The job of a comparison. pairs: as `compared` returns them; runs: of the case and the control."""

    pairs: Mapping[str, tuple[Run, Run]]
    runs: Sequence[Run]


def compared(runs: Sequence[Run]) -> dict[str, tuple[Run, Run]]:
    """Return by arm that may change nothing: its first run, and that of the case or, of one alone, of the control."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.arm, run)
    if not {"case", "control"} <= first.keys():
        return {}
    pairs = {
        name: (run, first["control" if run.design == "alone" else "case"])
        for name, run in first.items()
        # of the case and the control the runs are there anyway
        if run.design in ("alone", "repair")
        and run.trained_as not in {first[arm].trained_as for arm in ("case", "control")}
    }
    return {
        name: (run, other)
        for name, (run, other) in pairs.items()
        if {*run.faults} <= {*first["case"].faults}
        and all(getattr(run, key) == getattr(other, key) for key in ("environment", *BLOCKS))
    }


def unchanged(comparing: Comparing, results: Path) -> list[dict[str, Any]]:
    """Return the arms that are to the byte those of the case and the control in these runs, each with its hypothesis."""
    rows = []
    for name, (run, other) in sorted(comparing.pairs.items()):
        others = [one for one in comparing.runs if one.arm == other.arm]
        swapped = {*run.faults} ^ {*other.faults}
        if others and all(_same_in(results / "runs" / one.name, swapped) for one in others):
            steps = other.training.steps
            arm = {"arm": name, "hypothesis": run.hypothesis, "as": other.arm}
            rows.append({**arm, "steps": steps, "runs": len(others)})
    return rows


def _same_in(folder: Path, faults: set[str]) -> bool:
    """Return whether these faults, planted or mended, came to something else in no step of a run."""
    path = folder / SHADOW
    parted = read_json(path)["parted"] if path.is_file() else {}
    return all(fault in parted and parted[fault] is None for fault in faults)
