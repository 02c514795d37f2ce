"""Run a study: Snakemake in the study's working directory, and the report when it is done.

The same as `snakemake` for the default study; an overlay's study runs in studies/<name>/.
"""

import argparse
import fcntl
import os
import subprocess
import sys
from pathlib import Path

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.errors import InputError, run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlay", type=Path, help="parameters to merge over params.yaml")
    parser.add_argument("--cores", default="all")
    args, passed_on = parser.parse_known_args()
    params = load_params(ROOT / "params.yaml", args.overlay)
    folder = ROOT / "studies" / params["study"] if args.overlay else ROOT
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "snakemake", "--cores", args.cores),
        *("--snakefile", str(ROOT / "workflow" / "Snakefile"), "--directory", str(folder)),
    ]
    if args.overlay:
        command += ["--config", f"overlay={os.path.relpath(args.overlay, folder)}"]
    with _only_one(folder):
        # whoever held Snakemake's lock is dead, or the line above had failed
        if any((folder / ".snakemake" / "locks").glob("*")):
            subprocess.run([*command, "--unlock", "--quiet", "all"], check=True)
        sys.exit(subprocess.run([*command, *passed_on], check=False).returncode)


def _only_one(folder: Path):  # type: ignore[no-untyped-def]
    """Hold the study for this process; the lock goes with it, however it ends."""
    handle = (folder / ".run.lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{folder}: another run of this study is under way, wait for it") from None
    return handle


if __name__ == "__main__":
    run_main(main)
