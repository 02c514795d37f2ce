"""A study run by Snakemake in its own working directory, held for one run at a time."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.prepare import check, rooted
from rlvr_debug.workspace import core_count, hold, profile, snakemake_command, study_folder, unlock

__all__ = ["Steps", "run_study"]

# is told how many of how many jobs are done
Steps = Callable[[int, int], None]

_NEARLY_FULL = 1_000_000  # bytes
_DRY = {"-n", "--dry-run", "--dryrun"}
_DONE = re.compile(r"(\d+) of (\d+) steps")
_TO_DO = re.compile(r"total +(\d+)$")
_PATIENCE = 20.0  # seconds for Snakemake to end its jobs, on a cluster too
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
    if cores:
        core_count(cores)
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
        status = _snakemake(command, steps)
        if status and not _say_what_failed(folder, begin) and steps:
            logs = folder / ".snakemake" / "log"
            print(f"error: Snakemake ended with status {status}: {logs}", file=sys.stderr)
        return status


class _Terminated(KeyboardInterrupt):
    """A supervisor's request to end."""


def _snakemake(command: Sequence[str], steps: Steps | None) -> int:
    """Its exit status. When this process is interrupted, it and its jobs are ended first."""

    def terminated(*_: object) -> None:
        raise _Terminated

    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    before = signal.signal(signal.SIGTERM, terminated)
    process = subprocess.Popen(command, **(piped if steps else {}))
    patience = _PATIENCE
    try:
        return _follow(process, steps) if steps else process.wait()
    except _Terminated:
        patience = 0.0  # of this, nobody else has told it
        raise
    finally:
        _end(process, patience)
        signal.signal(signal.SIGTERM, before)


def _follow(process: subprocess.Popen[str], steps: Steps) -> int:
    assert process.stdout is not None
    begun, last = False, deque[str](maxlen=3)
    for line in process.stdout:
        last.append(line)
        if done := _DONE.search(line):
            steps(int(done[1]), int(done[2]))
        elif total := _TO_DO.match(line):
            begun = True
            steps(0, int(total[1]))
        elif _NOTHING in line:
            steps(0, 0)
    status = process.wait()
    if status and not begun:
        # it did not get as far as a job
        sys.stderr.writelines(last)
    return status


def _end(process: subprocess.Popen[str], patience: float) -> None:
    """Where it has not ended yet. patience: seconds for what a terminal's Ctrl-C, which it got too, begins."""
    try:
        if not _ends(process, patience):
            # what a terminal does; under nohup and in a script's background all of them ignore that
            ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            for job in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    job.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
            process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
            _ends(process, _PATIENCE)
    finally:
        process.kill()  # its jobs look after it, and end (watchdog.py)
        process.wait()


def _ends(process: subprocess.Popen[str], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds)
    return process.returncode is not None


def _say_what_failed(folder: Path, since: float) -> bool:
    """Once more at the end, a line for each job that failed, since Snakemake says much in between.

    Returns whether there was anything to say.
    """
    said = False
    logs = [log for log in (folder / "logs").rglob("*.log") if log.stat().st_mtime >= since]
    for log in sorted(logs, key=lambda each: each.stat().st_mtime):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        # accelerate's launcher has more to say after it, and each process says it
        found = [line for line in lines if line.startswith("error: ")][-1:]
        if not found and any(line.startswith("Traceback ") for line in lines):
            found = [f"error: {log}: {lines[-1]}"]
        for line in found:
            print(line, file=sys.stderr)
            said = True
    # where the logs stand too, so that they cannot say it
    if (free := shutil.disk_usage(folder).free) < _NEARLY_FULL:
        print(f"error: {folder}: {free} bytes free, expected more", file=sys.stderr)
        said = True
    return said


def _check_rows(params: dict[str, Any], root: Path, asks_hub: bool) -> None:
    """The user's own rows, checked before anything starts: one line and not Snakemake's many."""
    for environment, settings in params["data"].items():
        if settings["source"] == "jsonl" or (settings["source"] == "hub" and asks_hub):
            check(environment, rooted(settings, root))
