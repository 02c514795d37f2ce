"""Run a study: Snakemake in the study's working directory, and the report when it is done.

The same as `snakemake` for the default study; an overlay's study runs in studies/<name>/.
"""

import argparse
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import psutil

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import check, rooted
from rlvr_debug.errors import InputError, run_main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlay", type=Path, help="parameters to merge over params.yaml")
    parser.add_argument("--cores", default="all")
    parser.add_argument("--all", action="store_true", help="every phase, whatever one finds")
    args, passed_on = parser.parse_known_args()
    root = Path(os.path.relpath(ROOT))
    params = load_params(root / "params.yaml", args.overlay)
    _check_rows(params, root)
    folder = ROOT / "studies" / params["study"] if args.overlay else ROOT
    folder.mkdir(parents=True, exist_ok=True)
    config = [f"overlay={os.path.relpath(args.overlay, folder)}"] if args.overlay else []
    config += ["phases=all"] if args.all else []
    command = [
        # --config takes all words up to the next option, so that it cannot stand last
        *(sys.executable, "-m", "snakemake", *(["--config", *config] if config else [])),
        *("--cores", args.cores, "--snakefile", str(ROOT / "workflow" / "Snakefile")),
        *("--directory", str(folder)),
    ]
    with _only_one(folder):
        if any((folder / ".snakemake" / "locks").glob("*")):
            _nobody_runs_snakemake_in(folder)
            subprocess.run([*command, "--unlock", "--quiet", "all"], check=True)
        begin = time.time()
        status = subprocess.run([*command, *passed_on], check=False).returncode
        if status:
            _say_what_failed(folder, begin)
        sys.exit(status)


def _say_what_failed(folder: Path, since: float) -> None:
    """Once more at the end, a line for each job that refused its input: Snakemake says much in between."""
    logs = [log for log in (folder / "logs").rglob("*.log") if log.stat().st_mtime >= since]
    for log in sorted(logs, key=lambda each: each.stat().st_mtime):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[-1:]:
            if line.startswith("error: "):
                print(line, file=sys.stderr)


def _check_rows(params: dict[str, Any], root: Path) -> None:
    """The user's own rows, checked before anything starts: one line and not Snakemake's many."""
    for environment, settings in params["data"].items():
        if settings["source"] != "synthetic":
            check(environment, rooted(settings, root))


def _nobody_runs_snakemake_in(folder: Path) -> None:
    """Snakemake's lock is left over, unless a Snakemake that was started by hand still holds it."""
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        runs_snakemake = any("snakemake" in word for word in process.info["cmdline"] or [])
        if runs_snakemake and process.info["cwd"] == str(folder.resolve()):
            raise InputError(
                f"{folder}: Snakemake (process {process.pid}) is at work there, wait for it"
            )


def _only_one(folder: Path) -> TextIO:
    """Hold the study for this process; the lock goes with it, however it ends."""
    handle = (folder / ".run.lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{folder}: another run of this study is under way, wait for it") from None
    return handle


if __name__ == "__main__":
    run_main(main)
