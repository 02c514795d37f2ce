"""Build the tiny base model and, if asked to, compare it with another one."""

import argparse
import json
from pathlib import Path

from rlvr_debug.errors import run_main
from rlvr_debug.models.build import build_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True, help="data and environments")
    parser.add_argument("--seed", type=int, default=2, help="2: the shipped model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--compare", type=Path, help="a model whose held-out rewards to show beside"
    )
    args = parser.parse_args()
    report = build_model(args.params, args.seed, args.out, args.compare)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    run_main(main)
