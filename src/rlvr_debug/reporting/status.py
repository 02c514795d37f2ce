"""How far a study is: its trainings, done and under way, from the files that they leave as they go."""

from __future__ import annotations

import fcntl
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from rlvr_debug.arms import Run, runs
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_jsonl
from rlvr_debug.reporting.plan import Rates

__all__ = ["RunStatus", "StudyStatus", "study_status"]

State = Literal["done", "evaluating", "training", "failed", "interrupted", "waiting"]
_SMOOTHED = 5  # steps


@dataclass(frozen=True)
class RunStatus:
    """step: of the last checkpoint, or of the end; reward: mean of training's last five steps, where known."""

    environment: str
    arm: str
    seed: int
    state: State
    step: int
    steps: int
    reward: float | None


@dataclass(frozen=True)
class StudyStatus:
    """at_work: whether somebody runs it now; seconds_left: of processors, for what is not done."""

    study: str
    at_work: bool
    runs: list[RunStatus]
    seconds_left: float

    def count(self) -> Mapping[str, int]:
        return Counter(run.state for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def study_status(params: Mapping[str, Any], folder: Path, rates: Rates) -> StudyStatus:
    """folder: the study's."""
    at_work = _held(folder)
    trained = [run for run in runs(dict(params)) if run.arm == run.trained_as]
    found = [_run_status(run, folder, at_work) for run in trained]
    return StudyStatus(params["study"], at_work, found, _seconds_left(trained, found, rates))


def _run_status(run: Run, folder: Path, at_work: bool) -> RunStatus:
    place = folder / "results" / "runs" / run.environment / run.arm / str(run.seed)
    rows = _metrics(place)
    last = [row["reward"] for row in rows[-_SMOOTHED:] if row.get("reward") is not None]
    state: State
    if (place / "heldout.json").is_file():
        state = "done"
    elif (place / "metrics.jsonl").is_file():
        state = "evaluating"
    elif log := _log_of_now(run, folder):
        state = "failed" if _failed(log) else "training" if at_work else "interrupted"
    else:
        state = "interrupted" if rows else "waiting"
    return RunStatus(
        run.environment,
        run.arm,
        run.seed,
        state,
        len(rows),
        run.training.steps,
        mean(last) if last else None,
    )


def _metrics(place: Path) -> list[dict[str, Any]]:
    """Of a run that is done, else of its last whole checkpoint."""
    files = [place / "metrics.jsonl"]
    files += sorted(place.glob("checkpoint/[0-9]*/metrics.jsonl"), reverse=True)
    for file in files:
        with suppress(InputError):  # a checkpoint goes when the next one is whole
            return [row for _, row in read_jsonl(file)]
    return []


def _log_of_now(run: Run, folder: Path) -> Path | None:
    """Of its training, if that began since the study was last started."""
    log = folder / "logs" / "train" / run.environment / run.arm / f"{run.seed}.log"
    try:
        since = (folder / ".run.lock").stat().st_mtime
        return log if log.stat().st_mtime >= since else None
    except FileNotFoundError:
        return None


def _failed(log: Path) -> bool:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.startswith("error: ") for line in lines)


def _held(folder: Path) -> bool:
    """Whether a run of the study holds it (workspace.hold)."""
    lock = folder / ".run.lock"
    if not lock.is_file():
        return False
    with lock.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _seconds_left(trained: Sequence[Run], found: Sequence[RunStatus], rates: Rates) -> float:
    def each() -> Iterator[float]:
        for run, status in zip(trained, found, strict=True):
            if status.state == "done":
                continue
            if status.state != "evaluating":
                yield rates.training(run) * (1 - status.step / status.steps)
            yield rates.evaluation

    return sum(each())
