"""Evaluate the base model, or trained weights, on held-out rows."""

import argparse
import json
from pathlib import Path

from rlvr_debug.evaluation import evaluate_model
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment-name", required=True)
    parser.add_argument("--environment", required=True, help="its settings, as JSON")
    parser.add_argument("--base-model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="trained weights; without, the base model's")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--sampler", required=True, help="that of params.yaml")
    parser.add_argument("--server", required=True, help="the settings of one, as JSON")
    parser.add_argument(
        "--endpoint",
        type=Path,
        help="of a server with the base model; without, one is started if the sampler is one",
    )
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
        args.sampler,
        json.loads(args.server),
        args.endpoint,
        args.out,
    )


if __name__ == "__main__":
    run_main(main)
