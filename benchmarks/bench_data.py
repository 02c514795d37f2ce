"""Seconds and memory to generate, split and write synthetic rows of each environment."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.files import read_json
from rlvr_debug.processes import run_main
from rlvr_debug.study.params import load_params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="of each environment")
    args = parser.parse_args()
    total = 0.0
    params = load_params(ROOT / "params.yaml")
    for environment in params.data:
        settings = params.data_settings(environment)
        total += _measure(environment, {**settings, "source": "synthetic", "rows": args.rows})
    # the largest so far of the whole process, imports included; ru_maxrss is in KiB, on macOS in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mebibytes = peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    print(f"all: {total:.2f} s, peak memory {mebibytes:.0f} MiB")


def _measure(environment: str, settings: dict[str, Any]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        start = time.perf_counter()
        prepare(environment, settings, out)
        seconds = time.perf_counter() - start
        manifest = read_json(out / "manifest.json")
        size = sum(path.stat().st_size for path in out.iterdir()) / 2**20
    print(
        f"{environment}: {seconds:.2f} s for {manifest['train']['rows']} training and "
        f"{manifest['heldout']['rows']} held-out rows, {size:.1f} MiB"
    )
    return seconds


if __name__ == "__main__":
    run_main(main)
