"""Judge the hypotheses of the phases so far: is there a cause, so that later ones are not needed?"""

import argparse
import json
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.report.tables import write_phase
from rlvr_debug.trainers.base import read_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phase", type=int, required=True)
    parser.add_argument(
        "--runs", type=Path, required=True, help="file of all runs so far, a JSON list"
    )
    parser.add_argument("--hypotheses", required=True, help="their slugs, as a JSON list")
    parser.add_argument("--settings", required=True, help="how verdicts are reached, as JSON")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_phase(
        args.phase,
        read_runs(args.runs),
        json.loads(args.hypotheses),
        json.loads(args.settings),
        args.results,
        args.out,
    )


if __name__ == "__main__":
    run_main(main)
