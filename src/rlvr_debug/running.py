"""A study run by Snakemake in its own working directory, held for one run at a time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import check, rooted
from rlvr_debug.workspace import hold, profile, snakemake_command, study_folder, unlock

__all__ = ["Steps", "run_study"]

# is told how many of how many jobs are done
Steps = Callable[[int, int], None]

_NEARLY_FULL = 1_000_000  # bytes
_DRY = {"-n", "--dry-run", "--dryrun"}
_DONE = re.compile(r"(\d+) of (\d+) steps")
_NOTHING = "Nothing to be done"


def run_study(
    overlay: Path | None,
    cores: str | None = None,
    profile_name: str | None = None,
    every_phase: bool = False,
    passed_on: Sequence[str] = (),
    steps: Steps | None = None,
) -> int:
    """The default study, or an overlay's in studies/<name>/; returns Snakemake's exit status.

    cores: as the profile says, without; passed_on: to Snakemake, options or files to make. steps: is told of
    jobs that are done, instead of all that Snakemake says, which stays in its log. Raises InputError for
    params and rows that are bad, and where the study is at work.
    """
    if profile_name:
        os.environ["SNAKEMAKE_PROFILE"] = profile(profile_name)
    root = Path(os.path.relpath(ROOT))
    params = load_params(root / "params.yaml", overlay)
    _check_rows(params, root, asks_hub=not _DRY & set(passed_on))
    folder = study_folder(params, overlay)
    folder.mkdir(parents=True, exist_ok=True)
    command = [*snakemake_command(folder, overlay, every_phase, cores), *passed_on]
    with hold(folder):
        unlock(folder, command[: len(command) - len(passed_on)])
        begin = time.time()
        status = (
            _quietly(command, steps) if steps else subprocess.run(command, check=False).returncode
        )
        if status:
            _say_what_failed(folder, begin)
        return status


def _quietly(command: Sequence[str], steps: Steps) -> int:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if found := _DONE.search(line):
                steps(int(found[1]), int(found[2]))
            elif _NOTHING in line:
                steps(0, 0)
    finally:
        # a signal of the terminal has reached it as well; it ends its jobs
        status = process.wait()
    if status and not any(map(_DONE.search, said)):
        # it did not get as far as a job
        sys.stderr.writelines(said[-3:])
    return status


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
