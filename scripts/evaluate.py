"""Evaluate the base model, or trained weights, on held-out rows."""

import argparse
import json
from pathlib import Path

from rlvr_debug.errors import run_main
from rlvr_debug.study import evaluate_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment-name", required=True)
    parser.add_argument("--environment", required=True, help="its settings, as JSON")
    parser.add_argument("--base-model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="trained weights; without, the base model's")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    evaluate_model(
        args.environment_name,
        json.loads(args.environment),
        args.base_model,
        args.weights,
        args.rows,
        args.temperature,
        args.seed,
        args.out,
    )


if __name__ == "__main__":
    run_main(main)
