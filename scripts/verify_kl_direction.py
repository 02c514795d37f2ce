"""Compare each KL estimator, and its formula reversed, with the exact KL divergence."""

import argparse
import sys

from rlvr_debug.checkout import ROOT
from rlvr_debug.processes import run_main

sys.path.append(str(ROOT))  # the laboratory is not installed
from lab.exact_kl import direction_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--distances",
        type=float,
        nargs="+",
        default=[0.1, 1.0, 5.0],
        help="of policies from the reference: standard deviation of the difference of their logits",
    )
    print(direction_report(parser.parse_args().distances))


if __name__ == "__main__":
    run_main(main)
