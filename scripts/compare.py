"""Show what differs between two git revisions of the default study, and draw both their curves."""

import argparse
from pathlib import Path

from rlvr_debug.errors import run_main
from rlvr_debug.reporting.compare import compare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rev", required=True, help="git revision")
    parser.add_argument("--rev2", help="another one; without, the working tree")
    parser.add_argument("--out", type=Path, required=True, help="file for the chart, an SVG")
    args = parser.parse_args()
    print(compare(args.rev, args.rev2, args.out).text)


if __name__ == "__main__":
    run_main(main)
