"""Judge the hypotheses of the phases so far: is there a cause, so that later ones are not needed?"""

import argparse
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import read_study
from rlvr_debug.verdicts.tables import write_phase


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--phase", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study = read_study(args.study)
    runs, slugs = study.trained_in(study.results, args.phase), study.until(args.phase)[1]
    write_phase(args.phase, runs, slugs, study.judging(runs), study.results, args.out)


if __name__ == "__main__":
    run_main(main)
