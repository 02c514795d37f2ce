"""A study's working directory: Snakemake in it, who is at work there, and what is not needed any more."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Literal, TextIO

import psutil

from rlvr_debug.arms import runs
from rlvr_debug.config import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.git import git

__all__ = [
    "PROFILES",
    "at_work_since",
    "clean",
    "core_count",
    "hold",
    "jobs_to_do",
    "profile",
    "prune",
    "snakemake_command",
    "study_folder",
    "tidy",
    "to_do_of_runs",
    "unlock",
    "unnamed",
]

PROFILES = ROOT / "workflow" / "profiles"
Params = dict[str, Any]
_LITTLE = 100_000  # bytes, less than any study needs
_OF_A_STUDY = ("results", "logs", ".snakemake")


def study_folder(params: Params, overlay: Path | None, root: Path = ROOT) -> Path:
    """The default study's is the project; an overlay's has a folder of its own."""
    return root / "studies" / params["study"] if overlay else root


def profile(name: str) -> str:
    """What SNAKEMAKE_PROFILE has to be for one of workflow/profiles, or for a user's own by its path."""
    if name == "default":
        return "none"  # Snakemake finds that by itself, and adds others to it
    for place in (PROFILES / name, Path(name)):
        if place.is_file() or any(place.glob("*.yaml")):
            return str(place.resolve())
    known = ", ".join(sorted(path.name for path in PROFILES.iterdir()))
    raise InputError(f"profile {name!r}: expected {known}, or the path of a profile of your own")


def snakemake_command(
    folder: Path, overlay: Path | None, every_phase: bool = False, cores: str | None = "all"
) -> list[str]:
    """Snakemake on this study, to which options and targets can be added. cores: None leaves them to profiles."""
    config = [f"overlay={os.path.relpath(overlay, folder)}"] if overlay else []
    config += ["phases=all"] if every_phase else []
    return [
        # --config takes all words up to the next option, so that it cannot stand last
        *(sys.executable, "-m", "snakemake", *(["--config", *config] if config else [])),
        *(["--cores", cores] if cores else []),
        *("--snakefile", str(ROOT / "workflow" / "Snakefile")),
        *("--directory", str(folder)),
    ]


def core_count(given: str) -> int:
    """Of a --cores: a number, or all of this machine's. Raises InputError for anything else."""
    if given == "all":
        return os.cpu_count() or 1
    if not given.isdecimal() or int(given) < 1:
        raise InputError(f"--cores: found '{given}', expected all or a number from 1")
    return int(given)


def jobs_to_do(command: list[str]) -> dict[str, int]:
    """Jobs by rule that this Snakemake command would run now; later phases only once they are decided."""
    table = _dry_run(command).partition("Job stats:")[2].partition("\ntotal ")[0]
    jobs = {rule: int(count) for rule, count in re.findall(r"(?m)^(\w+) +(\d+)$", table)}
    jobs.pop("all", None)
    return jobs


def to_do_of_runs(command: list[str]) -> set[tuple[str, str, str, str]]:
    """Rule, environment, arm and seed of the jobs of single runs that it would run now."""
    pattern = r"(?m)^rule (train|evaluate_run):\n(?:    .*\n)*?    wildcards: (.*)$"
    found = set()
    for rule, wildcards in re.findall(pattern, _dry_run(command)):
        job = dict(word.split("=", 1) for word in wildcards.split(", "))
        found.add((rule, job["environment"], job["arm"], job["seed"]))
    return found


def _dry_run(command: list[str]) -> str:
    done = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        raise InputError(f"snakemake --dry-run: {(said.strip() or 'failed').splitlines()[-1]}")
    return said


def hold(folder: Path) -> TextIO:
    """Hold the study for this process; the lock goes with it, however it ends.

    Raises InputError where somebody else has it, or where nothing can be written.
    """
    for place in (folder, *(folder / name for name in _OF_A_STUDY)):
        if place.exists():
            _takes_files(place)
    # not emptied: its time says since when somebody holds it
    handle = (folder / ".run.lock").open("a")
    if not _locked(handle):
        raise InputError(f"{folder}: another run of this study is under way, wait for it")
    os.utime(handle.fileno())
    return handle


def _locked(handle: TextIO) -> bool:
    """Held from now on. Whoever only looks (at_work_since) has it for a moment, and is waited for."""
    for wait in (0.05, 0.2, 0):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(wait)
        else:
            return True
    return False


def at_work_since(folder: Path) -> float | None:
    """When the run of this study began that is under way, in seconds of the epoch; None where none is."""
    lock = folder / ".run.lock"
    if lock.is_file():
        with lock.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.stat().st_mtime
    begun = [process.create_time() for process in _snakemakes(folder)]
    return min(begun, default=None)


def _takes_files(place: Path) -> None:
    try:
        with NamedTemporaryFile(dir=place) as file:
            file.write(bytes(_LITTLE))
    except OSError as error:
        raise InputError(f"{place}: {error.strerror}, expected a folder to write to") from None


def _nobody_works_in(folder: Path) -> None:
    """Snakemake's lock is left over, unless one that was started by hand holds it, or its jobs go on."""
    if jobs := _slurm_jobs(folder):
        raise InputError(
            f"{folder}: jobs are at work there on Slurm, wait for them, or end those of a killed run:"
            f" scancel {' '.join(jobs)}"
        )
    for process in _snakemakes(folder):
        raise InputError(
            f"{folder}: Snakemake (process {process.pid}) is at work there, wait for it"
        )


def _snakemakes(folder: Path) -> Iterator[psutil.Process]:
    """Those at work there, by whomever they were started; their jobs are some too."""
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        # an environment may have its name
        runs_snakemake = any(Path(word).name == "snakemake" for word in words)
        if runs_snakemake and process.info["cwd"] == str(folder.resolve()):
            yield process


def _slurm_jobs(folder: Path) -> list[str]:
    """Ids of what was submitted from this folder and has not ended."""
    if not (folder / ".snakemake" / "slurm_logs").is_dir() or shutil.which("squeue") is None:
        return []
    command = ["squeue", "--me", "--noheader", "--format=%A %Z"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{folder}: jobs on Slurm are not known: {done.stderr.strip()}")
    jobs = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return [job for job, place in jobs if place == str(folder.resolve())]


def unlock(folder: Path, command: list[str]) -> bool:
    """Remove the lock that a killed Snakemake left, if there is one. For who holds the study.

    command: snakemake_command's.
    """
    if not any((folder / ".snakemake" / "locks").glob("*")):
        return False
    _nobody_works_in(folder)
    words = [*command, "--unlock", "--quiet", "all"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or ["failed"]
        raise InputError(f"{folder}: its lock stays, snakemake --unlock: {said[-1]}")
    return True


def unnamed(params: Params, folder: Path) -> list[Path]:
    """Run folders and logs of arms and seeds that the study does not have (any more).

    Of an arm without any seed left, its whole folder.
    """
    trained = {(run.environment, run.trained_as, str(run.seed)) for run in runs(params)}
    needed = {key[:depth] for key in trained for depth in (1, 2, 3)}
    places = [folder / "results" / "runs"]
    places += [folder / "logs" / rule for rule in ("train", "evaluate_run")]
    return [path for place in places for path in _outermost(place, (), needed)]


def _outermost(place: Path, above: tuple[str, ...], needed: set[tuple[str, ...]]) -> Iterator[Path]:
    """What of environment/arm/seed under `place` is not needed. above: the names from there to here."""
    for path in sorted(place.glob("*")):
        key = (*above, path.name.removesuffix(".log"))
        if key not in needed:
            yield path
        elif len(key) < 3:
            yield from _outermost(path, key, needed)


def prune(params: Params, folder: Path, dry_run: bool = False) -> list[Path]:
    """Remove what is `unnamed` (dry_run: nothing), and return it."""
    found = unnamed(params, folder)
    for path in [] if dry_run else found:
        # what a link leads to may be anywhere
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return found


def clean(folder: Path) -> None:
    """Remove results, logs and Snakemake's records, but nothing that git tracks. Needs a git repository."""
    git("clean", "-fdxq", "--", *_OF_A_STUDY, folder=folder)


def tidy(
    what: Literal["prune", "unlock", "clean"],
    params: Params,
    overlay: Path | None,
    dry_run: bool = False,
    root: Path = ROOT,
) -> Iterator[str]:
    """Do it to the default study or to an overlay's, and yield a line for each thing done.

    Raises InputError while the study is at work; dry_run: of prune.
    """
    folder = study_folder(params, overlay, root)
    if not folder.is_dir():
        yield f"{folder}: no such study yet"
        return
    with hold(folder):
        _nobody_works_in(folder)
        if what == "unlock":
            freed = unlock(folder, snakemake_command(folder, overlay))
            yield f"{folder}: {'unlocked' if freed else 'was not locked'}"
        elif what == "clean":
            clean(folder)
            yield f"{folder}: only what git tracks is left of {', '.join(_OF_A_STUDY)}"
        else:
            found = prune(params, folder, dry_run)
            verb = "would remove" if dry_run else "removed"
            yield from (f"{verb} {path.relative_to(root)}" for path in found)
            if not found:
                yield f"{folder}: params.yaml names all that is there"
