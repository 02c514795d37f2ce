"""Fetch a base model from the hub: safetensors, JSON and tokenizer into a folder, and a manifest last."""

import argparse
from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.models.places import base_model, fetch_model
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="owner/name@revision")
    parser.add_argument("--out", type=Path, required=True, help="folder for its files")
    args = parser.parse_args()
    model = base_model(args.model)
    if not model.revision:
        raise InputError(f"--model: found '{args.model}', expected owner/name@revision")
    fetch_model(model, args.out)


if __name__ == "__main__":
    run_main(main)
