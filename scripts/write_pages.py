"""Write the study's pages: a summary, and one per hypothesis."""

import argparse
import json
from pathlib import Path

from rlvr_debug.errors import run_main
from rlvr_debug.reporting.pages import write_pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--settings", required=True, help="case and verdicts, as JSON")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_pages(args.results, json.loads(args.settings), args.out)


if __name__ == "__main__":
    run_main(main)
