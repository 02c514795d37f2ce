"""A study run by Snakemake in its own working directory, held for one run at a time: to its end, or only to say what is to do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Literal

import psutil

from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import read_splits, rooted
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl, written_since
from rlvr_debug.processes import failure, git, output_of
from rlvr_debug.study.folder import WRITTEN, hold, last_run, nobody_works_in, study_folder
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.verdicts.looks import looks_after

# is called with how many of how many jobs are done
Steps = Callable[[int, int], None]
# is called with the file of the case's check, once it is there and of this study
Checked = Callable[[Path], None]

_NEARLY_FULL = 1_000_000  # bytes
_DRY = {"-n", "--dry-run", "--dryrun"}
_PATIENCE = 20.0  # seconds for Snakemake to end its jobs, on a cluster too


def run_study(
    overlay: Path | None,
    cores: str | None = None,
    profile_name: str | None = None,
    every_phase: bool = False,
    passed_on: Sequence[str] = (),
    steps: Steps | None = None,
    checked: Checked | None = None,
) -> int:
    """Run the default study, or an overlay's in studies/<name>/, and return Snakemake's exit status; `steps` and `checked` are called as it goes."""
    if cores:
        core_count(cores)
    if profile_name:
        os.environ["SNAKEMAKE_PROFILE"] = profile(profile_name)
    root = Path(os.path.relpath(ROOT))
    params = load_params(root / "params.yaml", overlay)
    check_rows(params, root, asks_hub=not _DRY & set(passed_on))
    folder = study_folder(params, overlay)
    folder.mkdir(parents=True, exist_ok=True)
    command = snakemake_command(folder, overlay, every_phase, cores)
    with hold(folder):
        unlock(folder, command)
        begin = time.time()
        look = _Check(folder / "results" / "check.json", begin, checked) if checked else None
        ended = _run(command, passed_on, steps, look)
        if ended.status and not _say_what_failed(folder, ended.failed, begin) and steps:
            logs = folder / ".snakemake" / "log"
            print(f"error: Snakemake ended with status {ended.status}: {logs}", file=sys.stderr)
        return ended.status


@dataclass
class _Ended:
    """How a run of Snakemake ended. begun: it had jobs to do; failed: logs of jobs, in the study's folder."""

    status: int = 0
    begun: bool = False
    failed: list[str] = field(default_factory=list)


@dataclass
class _Check:
    """Tells of the case's check, once. begin: of this run; an earlier file is of an earlier study, unless it is kept."""

    file: Path
    begin: float
    tell: Checked
    said: bool = False

    def look(self, kept: bool = False) -> None:
        """kept: whether this run does not make it again."""
        if not self.said and self.file.is_file() and (kept or written_since(self.file, self.begin)):
            self.said = True
            self.tell(self.file)


class _Terminated(KeyboardInterrupt):
    """A supervisor's request to end."""


def _run(
    command: Sequence[str], passed_on: Sequence[str], steps: Steps | None, check: _Check | None
) -> _Ended:
    """Run Snakemake to its end. When this process is interrupted, it and its jobs are ended first."""

    def terminated(*_: object) -> None:
        raise _Terminated

    ours, theirs = os.pipe()
    # of a dry run nothing is asked, and telling it takes a tenth of its time
    events = [] if _DRY & set(passed_on) else events_to(f"/dev/fd/{theirs}")
    words = [*command, *events, *passed_on]
    before = signal.signal(signal.SIGTERM, terminated)
    patience = _PATIENCE
    with TemporaryFile() as said:
        output: Any = said if steps else None
        process = subprocess.Popen(words, stdout=output, stderr=output, pass_fds=[theirs])
        os.close(theirs)
        try:
            ended = _follow(ours, steps, check)
            ended.status = process.wait()
        except _Terminated:
            patience = 0.0  # of this, nobody else has told it
            raise
        finally:
            _end(process, patience)
            signal.signal(signal.SIGTERM, before)
        if steps and ended.status and not ended.begun:
            # it did not get as far as a job
            said.seek(0)
            sys.stderr.writelines(said.read().decode(errors="replace").splitlines(True)[-3:])
        elif steps and not ended.begun:
            steps(0, 0)
    if check and not ended.status:
        check.look(kept=True)
    return ended


def _follow(pipe: int, steps: Steps | None, check: _Check | None) -> _Ended:
    """Read the events of a run until it ends."""
    ended, kept = _Ended(), False
    # closed with the context: where this is interrupted, Snakemake does not wait for a reader
    with open(pipe, encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            if event["event"] == "run_info":
                ended.begun = True
                done, of = 0, event["stats"]["total"]
                kept = "check_case" not in event["stats"]
            elif event["event"] == "progress":
                done, of = event["done"], event["total"]
            else:
                if event["event"] == "job_error":
                    # the rule's own, which a cluster's log of the job follows with the same line
                    ended.failed += event["log"][:1]
                continue
            if steps:
                steps(done, of)
            if check:
                check.look(kept)
    return ended


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    """End Snakemake where it has not ended, after so many seconds for the shutdown that Ctrl-C began."""
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
        process.kill()  # its jobs look after it, and end (processes.py)
        process.wait()


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)
    return process.returncode is not None


def _say_what_failed(folder: Path, logs: Sequence[str], begin: float) -> bool:
    """Say once more at the end, in a line for each job, what failed; return whether there was anything to say."""
    # each attempt of a job is a failure of its own, and writes the same log; a job that was never begun leaves an
    # earlier run's log as it was
    wrote = [log for log in map(folder.joinpath, dict.fromkeys(logs)) if written_since(log, begin)]
    lines = [failure(log) for log in wrote]
    # where the logs stand too, so that they cannot say it
    if (free := shutil.disk_usage(folder).free) < _NEARLY_FULL:
        lines.append(f"error: {folder}: {free} bytes free, expected more")
    said = [line for line in lines if line]
    for line in said:
        print(line, file=sys.stderr)
    return bool(said)


def check_rows(params: Params, root: Path, asks_hub: bool) -> None:
    """Check the user's own rows before anything starts: one line and not Snakemake's many."""
    for environment, settings in params.data.items():
        if settings.source == "jsonl" or (settings.source == "hub" and asks_hub):
            read_splits(environment, rooted(told(settings), root))


# --- how Snakemake is started, and what it would do


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


# --- what is not needed any more


def tidy(
    what: Literal["prune", "unlock", "clean"],
    params: Params,
    overlay: Path | None,
    dry_run: bool = False,
    root: Path = ROOT,
) -> Iterator[str]:
    """Do it to the default study or to an overlay's, unless it is at work, and yield a line for each thing done."""
    folder = study_folder(params, overlay, root)
    if not folder.is_dir():
        yield f"{folder}: no such study yet"
        return
    with hold(folder):
        nobody_works_in(folder)
        if what == "unlock":
            freed = unlock(folder, snakemake_command(folder, overlay))
            yield f"{folder}: {'unlocked' if freed else 'was not locked'}"
        elif what == "clean":
            # needs a git repository
            git("clean", "-fdxq", "--", *WRITTEN, folder=folder)
            yield f"{folder}: only what git tracks is left of {', '.join(WRITTEN)}"
        else:
            unnamed_paths = unnamed(params, folder)
            for path in unnamed_paths:
                # what a link leads to may be anywhere
                if not dry_run and path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif not dry_run:
                    path.unlink()
                yield f"{'would remove' if dry_run else 'removed'} {path.relative_to(root)}"
            if not unnamed_paths:
                yield f"{folder}: nothing to remove: params.yaml names every file"


def unlock(folder: Path, command: list[str]) -> bool:
    """Remove the lock that a killed Snakemake left, and return whether there was one; it is for whoever holds the study."""
    if not any((folder / ".snakemake" / "locks").glob("*")):
        return False
    nobody_works_in(folder)
    words = [*command, "--unlock", "--quiet", "all"]
    output_of(words, f"{folder}: cannot be unlocked by snakemake --unlock")
    return True


def unnamed(params: Params, folder: Path) -> list[Path]:
    """Return run folders, logs and looks that the study does not have any more, or that its last look did not choose."""
    study = resolve(params, ROOT)
    last = study.last_look(folder / "results")
    kept = study.runs if last.more else study.chosen(last)
    stale = [] if last.more else looks_after(last, folder / "results")
    trained = [tuple(run.name.split("/")) for run in kept]
    needed = {key[:depth] for key in trained for depth in (1, 2, 3)}
    places = [folder / "results" / "runs"]
    places += [folder / "logs" / rule for rule in ("train", "evaluate_run")]
    return [*stale, *(path for place in places for path in _outermost(place, (), needed))]


def _outermost(place: Path, above: tuple[str, ...], needed: set[tuple[str, ...]]) -> Iterator[Path]:
    """Yield what of environment/arm/seed under `place` is not needed. above: the names from there to here."""
    for path in sorted(place.glob("*")):
        key = (*above, path.name.removesuffix(".log"))
        if key not in needed:
            yield path
        elif len(key) < 3:
            yield from _outermost(path, key, needed)
