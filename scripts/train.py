"""Train one run of a study. Where one process does for both, evaluate it as well."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlvr_debug.jobs import Evaluation, read_job
from rlvr_debug.processes import run_main
from rlvr_debug.study.ahead import evaluate_ahead
from rlvr_debug.trainers import load_trainer
from rlvr_debug.trainers.base import Job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--run", required=True, help="its name there: environment/arm/seed")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    job = read_job(args.study, f"train/{args.run}", Job)
    # elsewhere than in the study's results, no job would take it
    ahead = read_job(args.study, "ahead", bool) and args.out.resolve() == job.out.resolve()
    evaluation = read_job(args.study, f"evaluate/{args.run}", Evaluation)
    evaluate = partial(evaluate_ahead, evaluation) if ahead else None
    job = replace(job, out=args.out)
    load_trainer(job.run.trainer).train(job, evaluate)


if __name__ == "__main__":
    run_main(main)
