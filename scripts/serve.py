"""Serve a model on loopback until SIGTERM; where, stands in a file before the model is loaded."""

import argparse
from pathlib import Path

from rlvr_debug.jobs import Serving, read_job
from rlvr_debug.processes import run_main
from rlvr_debug.serving.process import serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/study.json")
    parser.add_argument("--policies", action="store_true", help="not the base model: of trainings")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the endpoint's file")
    args = parser.parse_args()
    name = f"serve/{args.out}" if args.policies else "serve"
    serve(read_job(args.study, name, Serving), args.log, args.out)


if __name__ == "__main__":
    run_main(main)
