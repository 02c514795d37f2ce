"""Decide by the runs that are there: which arms change nothing, who runs next, and in the end the tables with the verdicts."""

import argparse
from pathlib import Path

from rlvr_debug.files import write_json
from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import UNCHANGED, read_study
from rlvr_debug.verdicts.looks import look_file, read_look, write_look
from rlvr_debug.verdicts.tables import write_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["unchanged", "look", "tables"])
    parser.add_argument(
        "--study", type=Path, required=True, help="results/study.json; results go beside it"
    )
    parser.add_argument("--last", type=Path, help="the last look that there is; without, none is")
    args = parser.parse_args()
    study = read_study(args.study)
    if args.what == "unchanged":
        write_json(study.results / UNCHANGED, study.unchanged())
        return
    last = read_look(args.last) if args.last else study.looked_in(study.results).first()
    if args.what == "look":
        look = study.look_at(last)
        write_look(look, look_file(study.results, look.number))
        return
    runs = study.chosen(last)
    settings = study.judging(runs)
    write_tables(runs, study.phases, study.unmapped, last, settings, study.results)


if __name__ == "__main__":
    run_main(main)
