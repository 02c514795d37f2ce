"""Evaluate the base model, or the weights of a run, on held-out rows."""

import argparse
from pathlib import Path

from rlvr_debug.evaluation import evaluate_model, take_evaluation
from rlvr_debug.jobs import Evaluation, read_job
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--run", help="environment/arm/seed; without, the base model is evaluated")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    job = read_job(args.study, f"evaluate/{args.run or args.environment}", Evaluation)
    if not take_evaluation(job, args.out):
        evaluate_model(job, args.out)


if __name__ == "__main__":
    run_main(main)
