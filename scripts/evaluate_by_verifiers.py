"""Evaluate the base model on some held-out rows by verifiers' own harness."""

import argparse
from pathlib import Path

from rlvr_debug.by_verifiers import evaluate_by_verifiers
from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import read_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_study(args.study)
    count = study.params.evaluation.verifiers_rows
    evaluate_by_verifiers(study.evaluation(args.environment), count, args.out)


if __name__ == "__main__":
    run_main(main)
