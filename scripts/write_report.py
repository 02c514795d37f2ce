"""Write the study's report: one HTML page with all that people read."""

import argparse
import json
from pathlib import Path

from rlvr_debug.files import write_text
from rlvr_debug.processes import run_main
from rlvr_debug.report.page import report_html


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--settings", required=True, help="case and verdicts, as JSON")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_text(args.out, report_html(args.results, json.loads(args.settings)))


if __name__ == "__main__":
    run_main(main)
