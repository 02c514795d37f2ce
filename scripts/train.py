"""Train one run of a study. Where one process does for both, evaluate it as well."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.study.ahead import evaluate_ahead, is_evaluated_ahead
from rlvr_debug.study.resolved import read_study
from rlvr_debug.trainers import load_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--run", required=True, help="its name there: environment/arm/seed")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_study(args.study)
    job = replace(study.training(args.run), out=args.out)
    ahead = is_evaluated_ahead(study, args.run, args.out)
    evaluate = partial(evaluate_ahead, study, args.run) if ahead else None
    load_trainer(job.run.trainer).train(job, evaluate)


if __name__ == "__main__":
    run_main(main)
