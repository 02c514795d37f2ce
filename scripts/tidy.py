"""Tidy a study's working directory: prune, unlock or clean it."""

import argparse
import os
from pathlib import Path

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.errors import run_main
from rlvr_debug.workspace import tidy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["prune", "unlock", "clean"])
    parser.add_argument("--overlay", type=Path, help="parameters to merge over params.yaml")
    parser.add_argument("--dry-run", action="store_true", help="prune: only say what would go")
    args = parser.parse_args()
    params = load_params(Path(os.path.relpath(ROOT)) / "params.yaml", args.overlay)
    for line in tidy(args.what, params, args.overlay, args.dry_run):
        print(line)


if __name__ == "__main__":
    run_main(main)
