"""Gather all runs into tables, verdicts and metrics."""

import argparse
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.report.tables import write_tables
from rlvr_debug.study.resolved import read_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--gates", type=Path, nargs="*", default=[], help="decisions after phases")
    args = parser.parse_args()
    study = read_study(args.study)
    write_tables(
        study.runs, study.phases, study.unmapped, args.gates, study.judged_by, study.results
    )


if __name__ == "__main__":
    run_main(main)
