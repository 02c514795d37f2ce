"""What whole runs of the case and the control say of stages, which they compute as the other one has them too (grpo/shadow.py).

An arm that differs in stages alone, and in no step, would be those runs to the byte: it is not trained. And what the
check sees of a stage in three steps is known of all steps where the case's runs compared it.
"""

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
    first = {run.arm: run for run in reversed(runs)}
    if not {"case", "control"} <= first.keys():
        return {}
    return {
        name: (run, other)
        for name, run in first.items()
        for other in [first["control" if run.design == "alone" else "case"]]
        # of the case and the control the runs are there anyway
        if run.design in ("alone", "repair")
        and run.trained_as not in {first[arm].trained_as for arm in ("case", "control")}
        and {*run.faults} <= {*first["case"].faults}
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
    if not path.is_file():
        return False
    parted = read_json(path)["parted"]
    return all(fault in parted and parted[fault] is None for fault in faults)


def whole_run(runs: Sequence[Run], results: Path) -> set[str]:
    """Return the hypotheses of which no stage that an arm swaps came to something else in any step of the case's runs."""
    first = {run.arm: run for run in reversed(runs)}
    swapped: dict[str, set[str]] = {}
    for run in first.values():
        other = first["control" if run.design == "alone" else "case"]
        swapped.setdefault(run.hypothesis, set()).update({*run.faults} ^ {*other.faults})
    case = [results / "runs" / run.name for run in runs if run.arm == "case"]
    return {slug for slug, faults in swapped.items() if all(_same_in(one, faults) for one in case)}
