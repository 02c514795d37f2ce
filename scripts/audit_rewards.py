"""Let scripted policies earn rewards on every row: an oracle must win, a spoiler must lose."""

import argparse
from pathlib import Path

from rlvr_debug.audit import audit_rewards
from rlvr_debug.jobs import read_job
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    job = read_job(args.study, f"audit_rewards/{args.environment}", dict)
    base_model, rows = Path(job["base_model"]), [Path(each) for each in job["rows"]]
    audit_rewards(args.environment, job["settings"], base_model, rows, args.out)


if __name__ == "__main__":
    run_main(main)
