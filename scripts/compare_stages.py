"""Say which arms change nothing in the runs that every study begins with: none of them is trained."""

import argparse
from pathlib import Path

from rlvr_debug.files import write_json
from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import read_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--runs", nargs="+", required=True, help="environment/arm/seed of each")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_study(args.study)
    runs = [run for run in study.runs if run.name in args.runs]
    write_json(args.out, study.unchanged(runs))


if __name__ == "__main__":
    run_main(main)
