"""Write the study's report: one HTML page with all that people read."""

import argparse
from pathlib import Path

from rlvr_debug.files import write_text
from rlvr_debug.jobs import read_job
from rlvr_debug.processes import run_main
from rlvr_debug.report.page import report_html


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    judged_by = read_job(args.study, "judged_by", dict)
    write_text(args.out, report_html(args.study.parent, judged_by))


if __name__ == "__main__":
    run_main(main)
