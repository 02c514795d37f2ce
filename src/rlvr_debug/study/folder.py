"""A study's working directory: where it is, who holds it, and who is at work there."""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TextIO

import psutil

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.study.model import Params

# of data/, where a user's own files may lie, what a study makes of them
SPLITS = "data/splits"
# what a study writes to
WRITTEN = ("results", "logs", ".snakemake", SPLITS)
_LITTLE = 100_000  # bytes, less than any study needs


def study_folder(params: Params, overlay: Path | None, root: Path = ROOT) -> Path:
    """Return the project for the default study, and a folder of its own for an overlay's."""
    return root / "studies" / params.study if overlay else root


def hold(folder: Path) -> TextIO:
    """Hold the study for this process, or raise InputError where somebody has it; the lock goes with the process, however it ends."""
    for place in (folder, *(folder / name for name in WRITTEN)):
        try:
            if place.exists():
                with NamedTemporaryFile(dir=place) as file:
                    file.write(bytes(_LITTLE))
        except OSError as error:
            said = f"{place}: {error.strerror}, expected a folder to write to"
            raise InputError(said) from None
    # not emptied: its time says since when somebody holds it
    handle = (folder / ".run.lock").open("a")
    if not _locked(handle):
        raise InputError(f"{folder}: another run of this study is under way; wait for it")
    os.utime(handle.fileno())
    return handle


def _locked(handle: TextIO) -> bool:
    """Take the lock. Whoever only looks (last_run) has it for a moment, and is waited for."""
    for wait in (0.05, 0.2, 0):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(wait)
        else:
            return True
    return False


def last_run(folder: Path) -> tuple[bool, float]:
    """Return whether a run of this study is under way, and when the last one began, in seconds of the epoch."""
    lock, held = folder / ".run.lock", 0.0
    if lock.is_file():
        held = lock.stat().st_mtime
        with lock.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True, lock.stat().st_mtime
    begun = [process.create_time() for process in _snakemakes(folder)]
    return bool(begun), min(begun, default=held)


def nobody_works_in(folder: Path) -> None:
    """Raise InputError where a Snakemake that was started by hand is at work, or jobs of a killed one go on."""
    jobs = []
    if (folder / ".snakemake" / "slurm_logs").is_dir() and shutil.which("squeue"):
        command = ["squeue", "--me", "--noheader", "--format=%A %Z"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{folder}: cannot list jobs on Slurm: {done.stderr.strip()}")
        submitted = (line.split(maxsplit=1) for line in done.stdout.splitlines())
        jobs = [job for job, place in submitted if place == str(folder.resolve())]
    if jobs:
        raise InputError(
            f"{folder}: Slurm jobs of this study are running; wait for them or, if their run was killed:"
            f" scancel {' '.join(jobs)}"
        )
    for process in _snakemakes(folder):
        raise InputError(
            f"{folder}: Snakemake (process {process.pid}) is at work there; wait for it"
        )


def _snakemakes(folder: Path) -> Iterator[psutil.Process]:
    """Yield those at work there, by whomever they were started; their jobs are some too."""
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        # an environment may have its name
        runs_snakemake = any(Path(word).name == "snakemake" for word in words)
        if runs_snakemake and process.info["cwd"] == str(folder.resolve()):
            yield process
