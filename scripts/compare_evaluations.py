"""Compare our held-out evaluation of the base model with that of verifiers, row by row."""

import argparse
from pathlib import Path

from rlvr_debug.by_verifiers import compare_evaluations
from rlvr_debug.jobs import Evaluation, read_job
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--verifiers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    job = read_job(args.study, f"evaluate/{args.environment}", Evaluation)
    compare_evaluations(job, args.ours, args.verifiers, args.out)


if __name__ == "__main__":
    run_main(main)
