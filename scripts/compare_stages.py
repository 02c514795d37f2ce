"""Say which arms change nothing in the runs that every study begins with: none of them is trained."""

import argparse
from pathlib import Path

from rlvr_debug.files import write_json
from rlvr_debug.jobs import read_job
from rlvr_debug.processes import run_main
from rlvr_debug.verdicts.unchanged import Comparing, unchanged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    comparing = read_job(args.study, "compare_stages", Comparing)
    write_json(args.out, unchanged(comparing, args.study.parent))


if __name__ == "__main__":
    run_main(main)
