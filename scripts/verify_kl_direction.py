"""Compare each KL estimator, and its formula reversed, with the exact KL divergence."""

import argparse

from rlvr_debug.errors import run_main
from rlvr_debug.reporting.kl import direction_report


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
