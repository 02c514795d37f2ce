"""Gather all runs into tables, verdicts and metrics."""

import argparse
import json
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.report.tables import write_tables
from rlvr_debug.trainers.base import read_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="file of all runs, a JSON list")
    parser.add_argument("--phases", required=True, help="phase by slug of hypothesis, as JSON")
    parser.add_argument("--unmapped", required=True, help="arms not run, by hypothesis, as JSON")
    parser.add_argument("--gates", type=Path, nargs="*", default=[], help="decisions after phases")
    parser.add_argument("--settings", required=True, help="how verdicts are reached, as JSON")
    parser.add_argument("--results", type=Path, required=True)
    args = parser.parse_args()
    write_tables(
        read_runs(args.runs),
        json.loads(args.phases),
        json.loads(args.unmapped),
        args.gates,
        json.loads(args.settings),
        args.results,
    )


if __name__ == "__main__":
    run_main(main)
