"""Run a study: Snakemake in the study's working directory, and the report when it is done.

The same as `snakemake` for the default study; an overlay's study runs in studies/<name>/.
"""

import argparse
import sys
from pathlib import Path

from rlvr_debug.errors import run_main
from rlvr_debug.running import run_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlay", type=Path, help="parameters to merge over params.yaml")
    parser.add_argument("--cores", help="default: as the profile says")
    parser.add_argument("--profile", help="of workflow/profiles, or the path of one of your own")
    parser.add_argument("--all", action="store_true", help="every phase, whatever one finds")
    args, passed_on = parser.parse_known_args()
    sys.exit(run_study(args.overlay, args.cores, args.profile, args.all, passed_on))


if __name__ == "__main__":
    run_main(main)
