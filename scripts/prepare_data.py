"""Prepare the rows of one environment: train.jsonl, heldout.jsonl and manifest.json."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rlvr_debug.data.prepare import prepare, rooted
from rlvr_debug.environments import environment_names
from rlvr_debug.errors import InputError
from rlvr_debug.processes import run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", choices=environment_names(), required=True)
    parser.add_argument("--settings", required=True, help="the environment's data block, as JSON")
    parser.add_argument("--root", type=Path, default=".", help="paths in the settings start here")
    parser.add_argument("--out", type=Path, required=True, help="folder for the three files")
    args = parser.parse_args()
    prepare(args.environment, _settings(args.settings, args.root), args.out)


def _settings(text: str, root: Path) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--settings: expected a JSON object, found {error}") from None
    if not isinstance(settings, dict):
        raise InputError(f"--settings: expected a JSON object, found {type(settings).__name__}")
    return rooted(settings, root)


if __name__ == "__main__":
    run_main(main)
