"""Train one run of a study. Where one process does for both, evaluate it as well."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from rlvr_debug.jobs import Evaluation, read_job
from rlvr_debug.processes import run_main
from rlvr_debug.trainers import Job, load_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--run", required=True, help="its name there: environment/arm/seed")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    job = read_job(args.study, f"train/{args.run}", Job)
    evaluate: Callable[[], None] | None = None
    # elsewhere than in the study's results, no job would take it
    if read_job(args.study, "ahead", bool) and args.out.resolve() == job.out.resolve():
        # by name: other code that evaluates trains nothing again
        evaluation = import_module("rlvr_debug.evaluation")
        own = read_job(args.study, f"evaluate/{args.run}", Evaluation)
        evaluate = partial(evaluation.evaluate_ahead, own)
    load_trainer(job.run.trainer).train(replace(job, out=args.out), evaluate)


if __name__ == "__main__":
    run_main(main)
