"""Where is each fault? Told without training: stages of the case are put into healthy first steps, and compared.

    python -m benchmarks.faults.located [--only CASE ...] [--cases FOLDER] [--out FILE]

Half of the stages at a time, so that few steps are run; then, with the right stages, each setting of the case. Of every
fault of the blind benchmark and of the library, into benchmarks/faults/located.csv (docs/evidence.md); or of a
folder's cases, the healthy ones too, as `make bench-faults
CASES=folder` takes it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.faults import planted
from benchmarks.faults.case import (
    ROWS,
    Case,
    Task,
    Told,
    load_cases,
    parts_of,
    settings_of,
    stages_of,
    told,
)
from benchmarks.faults.run import Place, first_steps
from benchmarks.faults.study import CASE
from benchmarks.faults.trace import traced
from rlvr_debug.causes import cause_of, variant_names
from rlvr_debug.errors import InputError, hint
from rlvr_debug.files import write_text
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.models.base_model import one_thread
from rlvr_debug.processes import run_main
from rlvr_debug.serving.choose import base_sampler
from rlvr_debug.trainers.base import CHECKED_STEPS
from rlvr_debug.trainers.own.training import load_policy

__all__ = ["Located", "cases_to_locate", "differing", "located", "parts_found"]

LOCATED = Path(__file__).with_name("located.csv")


@dataclass(frozen=True)
class Located:
    """A row of located.csv. planted: the stages and settings that are other than the control's; found: those that change the first steps.

    steps: how many times first steps were run for it.
    """

    case: str
    planted: str
    found: str
    steps: int
    seconds: float


def cases_to_locate() -> dict[str, Case]:
    """Return the planted cases of the benchmark, and one for each of the library's faults that none of them has."""
    found = {name: case for name, case in load_cases().items() if case.kind == "planted"}
    used = {fault for case in found.values() for fault in case.faults}
    for fault in variant_names():
        if fault not in used:
            cause = (cause_of(fault),)
            found[fault] = Case(fault, "planted", cause, fault, Task("gsm8k"), (fault,))
    return found


def differing(names: Sequence[str], same: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return those of the names that change anything. same: whether all of these together change nothing."""
    if not names or same(names):
        return []
    if len(names) == 1:
        return list(names)
    middle = len(names) // 2
    # two that only together change something are both named
    return [n for half in (names[:middle], names[middle:]) for n in differing(half, same)] or list(
        names
    )


def parts_found(whole: Told) -> tuple[list[str], int]:
    """Return the stages and settings that change the first steps, and how many times these were run.

    All that is known of a case is what its stages and settings do.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _searched(whole, Path(folder))


def _searched(whole: Told, folder: Path) -> tuple[list[str], int]:
    places: dict[str, Place] = {}
    own, right = vars(stages_of(whole.faults)), vars(Stages())
    digests: dict[tuple[str, ...], str] = {}

    def steps(of: Told, names: Sequence[str] = ()) -> str:
        key = (of.digest, *names)
        if of.digest not in places:
            places[of.digest] = Place(of, folder / of.digest)
        if key not in digests:
            stages = Stages(**{**right, **{name: own[name] for name in names}})
            digests[key] = _trace(places[of.digest], stages)
        return digests[key]

    settings = replace(whole, faults=())
    healthy = _with(whole, ())
    found = differing(STAGES, lambda names: steps(settings, names) == steps(settings))
    found += differing(
        settings_of(whole), lambda names: steps(_with(whole, names)) == steps(healthy)
    )
    return found, len(digests)


def located(case: Case) -> Located:
    """Search for what is wrong in a case."""
    begin = time.monotonic()
    found, steps = parts_found(told(case, CASE))
    seconds = time.monotonic() - begin
    return Located(case.name, " ".join(parts_of(case)), " ".join(found), steps, seconds)


def _with(case: Told, names: Sequence[str]) -> Told:
    """The healthy run with these settings of the case."""
    training = {key: v for key, v in case.training.items() if f"training.{key}" in names}
    rollouts = {key: v for key, v in case.rollouts.items() if f"rollouts.{key}" in names}
    return Told(case.task, (), training, rollouts, case.first_rows if ROWS in names else 0)


def _trace(place: Place, stages: Stages) -> str:
    training = first_steps(place, stages)
    sampler = base_sampler(place.base_model, place.chat)
    model, reference = load_policy(place.base_model, training.settings)
    return traced(training, model, reference, sampler, CHECKED_STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--only", nargs="+", metavar="CASE", help="these; rows of others stay as they are"
    )
    parser.add_argument("--cases", type=Path, metavar="FOLDER", help="of cases.yaml and modules")
    parser.add_argument("--out", type=Path, help=f"by default {LOCATED.name}, or in the folder")
    args = parser.parse_args()
    one_thread()
    out = args.out or (args.cases / LOCATED.name if args.cases else LOCATED)
    if args.cases:
        planted.__path__.insert(0, str(args.cases.resolve()))
        known = load_cases(args.cases / "cases.yaml")
    else:
        known = cases_to_locate()
    for name in args.only or ():
        if name not in known:
            raise InputError(f"--only: no case '{name}': {hint(name, known)}")
    rows = _kept(out, known) if args.only else {}
    for name in args.only or known:
        row = rows[name] = vars(located(known[name]))
        right = "all" if set(row["planted"].split()) == set(row["found"].split()) else "not all"
        print(
            f"{name}: {row['planted']} planted, found {row['found'] or 'nothing'}: {right}, ",
            end="",
        )
        print(f"{row['steps']} times, {row['seconds']:.1f} s", flush=True)
    table = pd.DataFrame([rows[name] for name in known if name in rows])
    write_text(out, table.to_csv(index=False, float_format="%.3g"))


def _kept(out: Path, known: Collection[str]) -> dict[str, dict[Any, Any]]:
    """The rows of cases that stand there already, by case."""
    if not out.is_file():
        return {}
    rows = pd.read_csv(out, keep_default_na=False).to_dict("records")
    return {row["case"]: row for row in rows if row["case"] in known}


if __name__ == "__main__":
    run_main(main)
