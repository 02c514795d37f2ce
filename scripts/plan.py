"""Show a study's runs, their cost, and what is not done yet, before anything runs."""

import argparse
from pathlib import Path

from rlvr_debug.errors import run_main
from rlvr_debug.reporting.plan import plan, plan_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlay", type=Path, help="parameters to merge over params.yaml")
    parser.add_argument("--cores", default="all")
    parser.add_argument("--all", action="store_true", help="every phase, whatever one finds")
    args = parser.parse_args()
    print(plan_text(plan(args.overlay, args.cores, args.all)))


if __name__ == "__main__":
    run_main(main)
