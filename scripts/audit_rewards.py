"""Let scripted policies earn rewards on every row: an oracle must win, a spoiler must lose."""

import argparse
from pathlib import Path

from rlvr_debug.audit import audit_rewards
from rlvr_debug.processes import run_main
from rlvr_debug.study.resolved import read_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    study, name = read_study(args.study), args.environment
    rows = [study.rows(name, split) for split in ("train", "heldout")]
    audit_rewards(name, study.settings(name), study.model_folder(name), rows, args.out)


if __name__ == "__main__":
    run_main(main)
