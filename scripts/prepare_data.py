"""Prepare the rows of one environment: train.jsonl, heldout.jsonl and manifest.json."""

import argparse
from pathlib import Path

from rlvr_debug.data.prepare import prepare
from rlvr_debug.jobs import read_job
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the three files")
    args = parser.parse_args()
    settings = read_job(args.study, f"prepare_data/{args.environment}", dict)
    prepare(args.environment, settings, args.out)


if __name__ == "__main__":
    run_main(main)
