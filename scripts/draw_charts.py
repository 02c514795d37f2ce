"""Draw the study's charts from its tables."""

import argparse
from pathlib import Path

from rlvr_debug.files import read_table
from rlvr_debug.processes import run_main
from rlvr_debug.report.charts import study_charts, write_svg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--minimum-effect", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tables = {file.stem: read_table(file) for file in args.tables.glob("*.csv")}
    for chart in study_charts():
        write_svg(chart.draw(tables, args.minimum_effect), args.out / f"{chart.name}.svg")


if __name__ == "__main__":
    run_main(main)
