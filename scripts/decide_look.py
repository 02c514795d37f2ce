"""Look at the runs that the look before chose: who runs next, or is all decided?"""

import argparse
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import read_study
from rlvr_debug.verdicts.looks import read_look, write_look


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--before", type=Path, help="the look before this one; without, the first")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_study(args.study)
    before = read_look(args.before) if args.before else study.looked_in(study.results).first()
    write_look(study.look_at(before), args.out)


if __name__ == "__main__":
    run_main(main)
