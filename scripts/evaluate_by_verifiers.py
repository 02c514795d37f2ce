"""Evaluate the base model on some held-out rows by verifiers' own harness."""

import argparse
from pathlib import Path

from rlvr_debug.by_verifiers import evaluate_by_verifiers
from rlvr_debug.jobs import Evaluation, read_job
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    job = read_job(args.study, f"evaluate/{args.environment}", Evaluation)
    count = read_job(args.study, f"evaluate_by_verifiers/{args.environment}", int)
    evaluate_by_verifiers(job, count, args.out)


if __name__ == "__main__":
    run_main(main)
