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
    parser.add_argument("--look", type=Path, help="the last look; without, all runs at once")
    args = parser.parse_args()
    study = read_study(args.study)
    last = read_look(args.look) if args.look else study.looked_in(study.results).first()
    runs = study.chosen(last)
    settings = study.judging(runs)
    write_tables(runs, study.phases, study.unmapped, last, settings, study.results)


if __name__ == "__main__":
    run_main(main)
