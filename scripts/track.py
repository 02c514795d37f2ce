"""Put an overlay's study under DVC: a stage of its own in studies/<name>/, as the default's."""

import argparse
import os
from pathlib import Path

from rlvr_debug.config import ROOT
from rlvr_debug.errors import run_main
from rlvr_debug.tracking import track


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlay", type=Path, required=True, help="the study's overlay")
    parser.add_argument("--all", action="store_true", help="of a study that runs every phase")
    args = parser.parse_args()
    folder = os.path.relpath(track(args.overlay, args.all, Path(os.path.relpath(ROOT))))
    print(f"{folder}: once the study is run, `dvc repro {folder}/dvc.yaml` and `git add {folder}`")


if __name__ == "__main__":
    run_main(main)
