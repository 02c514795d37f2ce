"""One run by a program that is not ours: started, watched, its files checked and put where ours would stand."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from rlvr_debug.arms import Run
from rlvr_debug.config import ROOT
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256, write_json, write_jsonl
from rlvr_debug.guarded import guarded, last_line, without_our_packages
from rlvr_debug.models.base_model import save_weights
from rlvr_debug.models.places import weight_files
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.trainers.protocol import Told, checked_metrics, checked_rollouts, checked_weights
from rlvr_debug.trainers.records import recorded_rollout, rollout_rows
from rlvr_debug.venvs import python_of, venvs_of

__all__ = ["Program", "Recording", "program_of", "record", "train_with_program"]

_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Program:
    """argv: to which the path of params.json is added. stall_seconds: the longest time between two rows
    of metrics, and before the first. apart: it runs in an environment of its own."""

    argv: tuple[str, ...]
    stall_seconds: float
    apart: bool = False


@dataclass(frozen=True)
class Recording:
    """What a program left behind, checked. rows: the training rows by id; rollouts: lines as in
    rollouts.schema.json."""

    rows: Mapping[str, Row]
    metrics: list[dict[str, Any]]
    rollouts: list[dict[str, Any]]
    weights: dict[str, Tensor]
    seconds: float


def program_of(trainer: str, settings: Mapping[str, Any]) -> Program:
    """settings: params.yaml's `command`. Words that begin with ./ start at the project's root."""
    [apart] = venvs_of(trainer, settings) or [""]
    python = str(python_of(apart)) if apart else sys.executable
    if trainer == "trl":
        words = [python, "-m", "rlvr_debug.trainers.trl_program"]
    else:
        words = [python if word == "python" else word for word in settings["program"]]
    argv = tuple(str(ROOT / word) if word.startswith("./") else word for word in words)
    return Program(argv, settings["stall_seconds"], bool(apart))


def train_with_program(
    run: Run,
    environment: Mapping[str, Any],
    base_model: Path,
    rows: Path,
    out: Path,
    program: Program,
    rollouts_every: int,
    rollouts_kept: int,
) -> None:
    """Writes what our own trainer writes: model.safetensors, timings, rollouts and, last, metrics.jsonl.

    Raises InputError, in one line that names the run, for a program that fails, hangs or writes what is
    not as docs/trainers.md says; nothing is written then.
    """
    found = record(run, environment, base_model, rows, out, program, rollouts_every, rollouts_kept)
    built = build_environment(run.environment, {**environment, **run.rollouts})
    chat = Chat(base_model)
    rollouts = [recorded_rollout(row, found.rows, built, chat) for row in found.rollouts]
    save_weights(found.weights, out / "model.safetensors")
    write_jsonl(out / "timings.jsonl", [{"seconds": round(found.seconds, 3)}])
    size = run.training.group_size
    write_jsonl(out / "rollouts.jsonl", rollout_rows(found.rollouts, rollouts, size, chat))
    write_jsonl(out / "metrics.jsonl", found.metrics)
    shutil.rmtree(out / "attempt")


def record(
    run: Run,
    environment: Mapping[str, Any],
    base_model: Path,
    rows: Path,
    out: Path,
    program: Program,
    rollouts_every: int,
    rollouts_kept: int,
    what: str = "run",
) -> Recording:
    """Run the program in out/attempt and check what it wrote. What it says goes to out/attempt/log.txt.

    what: is being done, for the line of an error.
    """
    attempt = out / "attempt"
    written = attempt / "out"
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir(parents=True)
    told = Told(
        run=run.to_json(),
        environment={**environment, **run.rollouts},
        base_model=str(base_model.resolve()),
        rows=str(rows.resolve()),
        out=str(written.resolve()),
        checkpoint="",
        rollouts_every=rollouts_every,
        rollouts_kept=rollouts_kept,
    )
    told = replace(told, checkpoint=str(_checkpoint(attempt, told, program).resolve()))
    write_json(attempt / "params.json", asdict(told))
    name = f"{what} {run.environment}/{run.arm}/{run.seed}"
    try:
        seconds = _watched(program, attempt, run.training.steps)
        metrics = checked_metrics(written / "metrics.jsonl", run.training.steps)
        rollouts = checked_rollouts(written / "rollouts.jsonl")
        known = {row.id: row for row in read_rows(run.environment, rows)}
        for number, row in enumerate(rollouts, start=1):
            if row["row"] not in known:
                raise InputError(
                    f"{written / 'rollouts.jsonl'}:{number}: row '{row['row']}' is not in {rows}"
                )
        weights = checked_weights(written, base_model)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return Recording(known, metrics, rollouts, weights, seconds)


def _checkpoint(attempt: Path, told: Told, program: Program) -> Path:
    """A folder that only the same run finds again: those of a run that was told otherwise are removed."""
    files = [*weight_files(Path(told.base_model, "model.safetensors")), Path(told.rows)]
    given = [asdict(told), program.argv, *map(sha256, files)]
    name = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]
    for other in attempt.glob("checkpoint-*"):
        if other.name != f"checkpoint-{name}":
            shutil.rmtree(other)
    folder = attempt / f"checkpoint-{name}"
    folder.mkdir(exist_ok=True)
    return folder


def _watched(program: Program, attempt: Path, steps: int) -> float:
    """Run it to its end. Returns seconds. Raises InputError if it fails, makes no progress or no end."""
    log, metrics = attempt / "log.txt", attempt / "out" / "metrics.jsonl"
    argv = (*program.argv, str(attempt / "params.json"))
    environment = without_our_packages() if program.apart else dict(os.environ)
    begin = progress = time.monotonic()
    size = -1
    with guarded(argv, log, environment) as process:
        while process.poll() is None:
            time.sleep(_POLL)
            now = metrics.stat().st_size if metrics.exists() else -1
            if now != size:
                size, progress = now, time.monotonic()
                if now >= 0 and metrics.read_bytes().count(b"\n") > steps:
                    raise InputError(f"{metrics}: more than {steps} rows, expected {steps}")
            if time.monotonic() - progress > program.stall_seconds:
                raise InputError(
                    f"no row was added to metrics.jsonl for {program.stall_seconds:g} s, and the "
                    "program was killed (command.stall_seconds)"
                )
    if process.returncode:
        raise InputError(
            f"the program ended with status {process.returncode}: {last_line(log)} (all of it: {log})"
        )
    return time.monotonic() - begin
