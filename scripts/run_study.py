"""Run a study: Snakemake in the study's working directory, and the report when it is done.

The same as `snakemake` for the default study; an overlay's study runs in studies/<name>/.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import check, rooted
from rlvr_debug.errors import run_main
from rlvr_debug.workspace import hold, profile, snakemake_command, study_folder, unlock

_NEARLY_FULL = 1_000_000  # bytes
_DRY = {"-n", "--dry-run", "--dryrun"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overlay", type=Path, help="parameters to merge over params.yaml")
    parser.add_argument("--cores", help="default: as the profile says")
    parser.add_argument("--profile", help="of workflow/profiles, or the path of one of your own")
    parser.add_argument("--all", action="store_true", help="every phase, whatever one finds")
    args, passed_on = parser.parse_known_args()
    if args.profile:
        os.environ["SNAKEMAKE_PROFILE"] = profile(args.profile)
    root = Path(os.path.relpath(ROOT))
    params = load_params(root / "params.yaml", args.overlay)
    _check_rows(params, root, asks_hub=not _DRY & set(passed_on))
    folder = study_folder(params, args.overlay)
    folder.mkdir(parents=True, exist_ok=True)
    command = snakemake_command(folder, args.overlay, args.all, args.cores)
    with hold(folder):
        unlock(folder, command)
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
        # accelerate's launcher has more to say after it, and each process says it
        for line in [line for line in lines if line.startswith("error: ")][-1:]:
            print(line, file=sys.stderr)
    # where the logs stand too, so that they cannot say it
    if (free := shutil.disk_usage(folder).free) < _NEARLY_FULL:
        print(f"error: {folder}: {free} bytes free, expected more", file=sys.stderr)


def _check_rows(params: dict[str, Any], root: Path, asks_hub: bool) -> None:
    """The user's own rows, checked before anything starts: one line and not Snakemake's many."""
    for environment, settings in params["data"].items():
        if settings["source"] == "jsonl" or (settings["source"] == "hub" and asks_hub):
            check(environment, rooted(settings, root))


if __name__ == "__main__":
    run_main(main)
