"""Where a run's files are: its log, its checkpoints, and what a tracker has of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# what a finished run leaves beside its metrics and rollouts, and what an interrupted one goes on from
_CHECKPOINTS = ("model.safetensors", "adapter", "checkpoint")


@dataclass(frozen=True)
class Tracked:
    """A run in a tracker: its folder, from the study's folder, and the command that shows or uploads it."""

    tracker: str
    folder: str
    command: str


@dataclass(frozen=True)
class RunFiles:
    """Of one run, paths from the study's folder. checkpoints, trackers: those that are there."""

    arm: str
    seed: int
    folder: str
    log: str
    checkpoints: Sequence[str]
    trackers: Sequence[Tracked]


def run_files(results: Path, runs: Sequence[Mapping[Any, Any]]) -> list[RunFiles]:
    """Return the files of these runs, rows of runs.csv, as they lie beside the tables."""
    found = []
    for run in runs:
        name = f"{run['environment']}/{run['trained_as']}/{run['seed']}"
        folder = results / "runs" / name
        kept = [f"results/runs/{name}/{file}" for file in _CHECKPOINTS if (folder / file).exists()]
        log = f"logs/train/{name}.log"
        tracked = list(_tracked(folder / "trackers", f"results/runs/{name}/trackers"))
        found.append(RunFiles(run["arm"], run["seed"], f"results/runs/{name}", log, kept, tracked))
    return found


def _tracked(folder: Path, shown: str) -> Iterator[Tracked]:
    """Yield what trackers wrote into the folder: Weights & Biases a folder for each start, TensorBoard its events."""
    for run in sorted(folder.glob("wandb/*run-*")):
        place = f"{shown}/wandb/{run.name}"
        yield Tracked("Weights & Biases", place, f"wandb sync {place}")
    if any(folder.rglob("events.out.tfevents.*")):
        yield Tracked("TensorBoard", shown, f"tensorboard --logdir {shown}")
