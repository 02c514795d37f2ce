"""A study's working directory: where it is, who holds it, who is at work there, and the Snakemake that runs in it."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, TextIO

import psutil

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl
from rlvr_debug.processes import output_of
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


# --- Snakemake in it


PROFILES = ROOT / "workflow" / "profiles"


def profile(name: str) -> str:
    """Return what SNAKEMAKE_PROFILE has to be for one of workflow/profiles, or for a user's own by its path."""
    if name == "default":
        return "none"  # Snakemake finds that by itself, and adds others to it
    for place in (PROFILES / name, Path(name)):
        if place.is_file() or any(place.glob("*.yaml")):
            return str(place.resolve())
    known = ", ".join(sorted(path.name for path in PROFILES.iterdir()))
    raise InputError(f"profile {name!r}: expected {known}, or the path of a profile of your own")


def core_count(given: str) -> int:
    """Return how many cores a --cores means. Raises InputError for what is no number and not `all`."""
    if given == "all":
        return os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"--cores: found '{given}', expected all or a number of at least 1")
    return int(given)


def snakemake_command(
    folder: Path, overlay: Path | None, every_phase: bool = False, cores: str | None = "all"
) -> list[str]:
    """Return the words that start Snakemake on this study; cores: None leaves them to profiles."""
    config = [f"overlay={os.path.relpath(overlay, folder)}"] if overlay else []
    config += ["phases=all"] if every_phase else []
    return [
        # --config takes all words up to the next option, so that it cannot stand last
        *(sys.executable, "-m", "snakemake", *(["--config", *config] if config else [])),
        *(["--cores", cores] if cores else []),
        *("--snakefile", str(ROOT / "workflow" / "Snakefile")),
        *("--directory", str(folder)),
    ]


def events_to(place: str) -> list[str]:
    """Return the options by which Snakemake writes its events, as lines of JSON, to a file or pipe."""
    return ["--logger", "rlvr-debug", "--logger-rlvr-debug-events", place]


def jobs_to_do(folder: Path, command: list[str]) -> dict[str, int]:
    """Return how many jobs of each rule this command would run now; later phases count once they are decided."""
    jobs: dict[str, int] = {}
    # no rules, no progress: the counts are all that is asked for
    for event in _dry_run(folder, [*command, "--quiet", "rules", "progress"]):
        if event["event"] == "run_info":
            jobs = event["stats"]
    return {rule: count for rule, count in jobs.items() if rule not in ("all", "total")}


def runs_to_do(folder: Path, command: list[str]) -> set[tuple[str, str]]:
    """Return rule and name (environment/arm/seed) of each training and its evaluation that would run now."""
    jobs = set()
    for event in _dry_run(folder, command):
        if event["event"] == "job_info" and event["rule_name"] in ("train", "evaluate_run"):
            job = event["wildcards"]
            jobs.add((event["rule_name"], f"{job['environment']}/{job['arm']}/{job['seed']}"))
    return jobs


def _dry_run(folder: Path, command: list[str]) -> list[dict[str, Any]]:
    with TemporaryDirectory() as place, _left_as_it_was(folder):
        events = Path(place, "events")
        events.touch()
        output_of([*command, "--dry-run", *events_to(str(events))], "snakemake --dry-run")
        return [event for _, event in read_jsonl(events)]


@contextmanager
def _left_as_it_was(folder: Path) -> Iterator[None]:
    """Remove the folders that Snakemake makes to look, unless the study has been begun meanwhile."""
    own = folder / ".snakemake"
    was_there, was_own = folder.is_dir(), own.is_dir()
    try:
        yield
    finally:
        if not was_own and not last_run(folder)[0]:
            shutil.rmtree(own, ignore_errors=True)
        if not was_there:
            with suppress(OSError):  # a run's files are in it
                folder.rmdir()
