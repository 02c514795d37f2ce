"""Jobs of the benchmark's workflow: files in, files out. `python -m benchmarks.faults.jobs JOB --help`."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.faults.study import Arm, Outcome, all_arms, choose, judge, part_arms
from rlvr_debug.diagnosis.rank import diagnose
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    jobs = parser.add_subparsers(required=True)
    for job, described, *names in (
        (_runs, "train and evaluate what is told the same, seed by seed", "told", "seeds"),
        (_tried, "say which cases cannot be trained, and why", "runs"),
        (_check, "compute the first steps of a case's trainer again", "told"),
        (_locate, "say which stages and settings of a case change its first steps", "told"),
        (_choose, "read each case's log and check, and choose its arms", "observed"),
        (_judge, "from the runs of these arms to an answer for each case", "chosen", "runs"),
    ):
        each = jobs.add_parser(job.__name__[1:], help=described)
        each.set_defaults(job=job)
        each.add_argument("--out", type=Path, required=True)
        for name in names:
            each.add_argument(f"--{name}", required=True)
        if job is _runs:
            each.add_argument("--may-fail", action="store_true", help="write why a run fails")
    args = vars(parser.parse_args())
    job = args.pop("job")
    job(**args)


def _runs(out: Path, told: str, seeds: str, may_fail: bool) -> None:
    """Write the outcomes of all seeds; each seed's file stands beside it, so that an interrupted job goes on. The first
    seed's log is written as TRL's.

    may_fail: a fault is somebody else's module, which may raise anything: why stands in place of the outcomes. What the
    machine lacks, space or memory, is no fault.
    """
    from benchmarks.faults.case import in_one_line

    try:
        write_json(out, _trained(out, told, [int(seed) for seed in seeds.split(",")]))
    except (OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if not may_fail:
            raise
        traceback.print_exc()  # into the job's log
        write_json(out, {"fails": in_one_line(error)})


def _trained(out: Path, told: str, wanted: Sequence[int]) -> list[dict[str, Any]]:
    from benchmarks.faults.case import Told
    from benchmarks.faults.run import Place, run
    from rlvr_debug.models.base_model import one_thread

    one_thread()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Told.from_json(json.loads(told)), Path(folder))
        for seed in wanted:
            file = out.parent / f"{seed}.json"
            if not file.is_file():
                log = out.parent / "log" if seed == wanted[0] else None
                write_json(file, run(place, seed, log))
            outcomes.append(read_json(file))
    return outcomes


def _tried(out: Path, runs: str) -> None:
    """runs: by case, the files of its outcomes, as JSON."""
    failed: dict[str, str] = {}
    for case, files in json.loads(runs).items():
        for found in map(read_json, map(Path, files)):
            if "fails" in found:
                failed.setdefault(case, found["fails"])
    write_json(out, failed)


def _check(out: Path, told: str) -> None:
    from benchmarks.faults.case import Told
    from benchmarks.faults.run import Place, recorded
    from rlvr_debug.models.base_model import one_thread
    from rlvr_debug.replay.answer import answer_of, timeless
    from rlvr_debug.replay.check import check

    one_thread()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        record = recorded(Place(Told.from_json(json.loads(told)), Path(folder)))
        found = timeless(answer_of(record, check(record)))
        write_json(out, {"seconds": time.monotonic() - begin, "answer": found})


def _locate(out: Path, told: str) -> None:
    from benchmarks.faults.case import Told
    from benchmarks.faults.located import parts_found
    from rlvr_debug.models.base_model import one_thread

    one_thread()
    begin = time.monotonic()
    parts, steps = parts_found(Told.from_json(json.loads(told)))
    write_json(out, {"parts": parts, "steps": steps, "seconds": time.monotonic() - begin})


def _choose(out: Path, observed: str) -> None:
    """observed: a folder of cases, each with what the check says and a log."""
    chosen = {}
    for case in _cases(observed):
        checked = read_json(case / "check.json")["answer"]
        by_logs = [ranked.slug for ranked in diagnose(case / "log", gpus=0).ranked]
        # only where the cases are searched for what is wrong
        place = case / "located.json"
        parts = read_json(place)["parts"] if place.is_file() else []
        arms = [arm.name for arm in choose(checked, by_logs, parts)]
        known = {"check": checked, "by_logs": by_logs, "parts": parts}
        chosen[case.name] = {**known, "arms": arms}
    write_json(out, chosen)


def _cases(observed: str) -> list[Path]:
    tried = Path(observed) / "tried.json"
    failed = read_json(tried) if tried.is_file() else ()
    return [case for case in sorted(Path(observed).glob("case-*")) if case.name not in failed]


def _judge(out: Path, chosen: str, runs: str) -> None:
    """runs: by case and arm, the file of its outcomes, as JSON."""
    files, answers = json.loads(runs), {}
    for case, found in read_json(Path(chosen)).items():
        pairs = map(part_arms, found["parts"])
        known: Mapping[str, Arm] = {
            arm.name: arm for arm in [*all_arms(), *(arm for pair in pairs for arm in pair)]
        }
        outcomes = {arm: _outcomes(Path(file)) for arm, file in files[case].items()}
        arms = [known[name] for name in found["arms"]]
        answer = judge(found["check"], found["by_logs"], arms, outcomes)
        whether = {"validated": answer.validated, "inconclusive": answer.inconclusive}
        answers[case] = {**asdict(answer), **whether}
    write_json(out, answers)


def _outcomes(file: Path) -> list[Outcome]:
    found = read_json(file)
    if "fails" in found:
        raise InputError(f"{file}: this arm cannot be trained: {found['fails']}")
    return [Outcome(each["seed"], each["sampled"], each["greedy"], each["log"]) for each in found]


if __name__ == "__main__":
    run_main(main)
