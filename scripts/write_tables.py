"""Gather all runs into tables, verdicts and metrics."""

import argparse
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import read_study
from rlvr_debug.verdicts.looks import read_look
from rlvr_debug.verdicts.tables import write_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--gates", type=Path, nargs="*", default=[], help="decisions after phases")
    parser.add_argument("--look", type=Path, help="the last look, of the sequential design")
    args = parser.parse_args()
    study, gates = read_study(args.study), args.gates
    runs = study.trained_in(study.results)
    if args.look:
        runs, gates = study.chosen(read_look(args.look)), [args.look]
    told = study.judging(runs)
    write_tables(runs, study.phases, study.unmapped, gates, told, study.results)


if __name__ == "__main__":
    run_main(main)
