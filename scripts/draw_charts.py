"""Draw the study's charts from its tables."""

import argparse
from pathlib import Path

import pandas as pd

from rlvr_debug.errors import run_main
from rlvr_debug.reporting.charts import effects_chart, learning_chart, write_svg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--minimum-effect", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    # an empty cell is missing; an arm called "null" is not
    arms, curves = (
        pd.read_csv(args.tables / name, keep_default_na=False, na_values=[""])
        for name in ("arms.csv", "curves.csv")
    )
    write_svg(learning_chart(curves, list(arms["arm"])), args.out / "learning.svg")
    write_svg(effects_chart(arms, args.minimum_effect), args.out / "effects.svg")


if __name__ == "__main__":
    run_main(main)
