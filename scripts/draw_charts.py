"""Draw the study's charts from its tables."""

import argparse
from pathlib import Path

from rlvr_debug.files import read_json, read_table
from rlvr_debug.processes import run_main
from rlvr_debug.report.charts import study_charts, write_svg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    least = read_json(args.study)["params"]["verdicts"]["minimum_effect"]
    files = (args.study.parent / "tables").glob("*.csv")
    tables = {file.stem: read_table(file) for file in files}
    for chart in study_charts():
        drawn = chart.draw(tables, least)
        write_svg(drawn, args.out / f"{chart.name}.svg")


if __name__ == "__main__":
    run_main(main)
