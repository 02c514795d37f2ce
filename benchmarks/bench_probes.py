"""Seconds of each probe on the default study's case, and of all of them, on one core.

    python -m benchmarks.bench_probes [--case healthy]

Making the rollouts that all of them look at is timed apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from rlvr_debug.trainers.own.probe import case_subject

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.probes import PROBES, readable
from rlvr_debug.processes import run_main
from rlvr_debug.study.arms import HEALTHY, runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers.base import Job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--case", choices=("case", HEALTHY), default="case")
    parser.add_argument("--verbose", action="store_true", help="print what was measured, too")
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml")
    design = "control" if args.case == HEALTHY else "case"
    run = next(run for run in runs(params) if run.design == design)
    with tempfile.TemporaryDirectory() as folder:
        prepare(run.environment, params.data_settings(run.environment), Path(folder))
        rows = Path(folder) / "train.jsonl"
        environment = params.settings(run.environment)
        start = time.perf_counter()
        job = Job(run, environment, ROOT / params.base_model, rows, Path(folder))
        subject = case_subject(job)
    print(f"{len(subject.rollouts)} rollouts: {time.perf_counter() - start:.2f} s")
    total = 0.0
    for probe in PROBES:
        start = time.perf_counter()
        found = probe(subject)
        seconds = time.perf_counter() - start
        total += seconds
        print(f"{found.probe}: {seconds:.2f} s, {'passes' if found.passed else 'fails'}")
        if args.verbose:
            print(readable(found))
    print(f"all probes: {total:.2f} s")


if __name__ == "__main__":
    run_main(main)
