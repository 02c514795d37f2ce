"""Write the file of a new hypothesis, to be filled in."""

import argparse

from rlvr_debug.errors import run_main
from rlvr_debug.hypotheses.template import write_hypothesis


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("slug", help="its name, such as learning-rate")
    parser.add_argument("--kind", choices=["cause", "localiser"], default="cause")
    args = parser.parse_args()
    print(write_hypothesis(args.slug, args.kind))


if __name__ == "__main__":
    run_main(main)
