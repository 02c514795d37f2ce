"""Serve a model on loopback until SIGTERM; where, stands in a file before the model is loaded."""

import argparse
import json
from pathlib import Path

from rlvr_debug.processes import run_main
from rlvr_debug.serving.process import serve
from rlvr_debug.serving.vllm import Trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", type=Path, required=True)
    parser.add_argument("--sampler", required=True, help="that of params.yaml")
    parser.add_argument("--server", required=True, help="its settings, as JSON")
    parser.add_argument("--policies", type=int, default=0, help="that are trained with it at once")
    parser.add_argument("--lora-r", type=int, default=0, help="the highest rank of their adapters")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the endpoint's file")
    args = parser.parse_args()
    trained = Trained(args.lora_r, args.policies) if args.policies else None
    serve(args.base_model, args.sampler, json.loads(args.server), trained, args.log, args.out)


if __name__ == "__main__":
    run_main(main)
