"""One run by a program: it is started and watched, and its files are checked and put where our trainer's would be."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256, write_json, write_jsonl
from rlvr_debug.jobs import settings_digest
from rlvr_debug.metrics.rollouts import as_sampled, token_texts
from rlvr_debug.models.base_model import ADAPTER, link_adapter, save_weights
from rlvr_debug.models.places import weight_files
from rlvr_debug.processes import guarded, last_line, variables_apart
from rlvr_debug.sampling.alignment import carried
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, rebuilt
from rlvr_debug.trainers import SHADOW, Job
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.protocol import (
    PROTOCOL,
    Asked,
    checked_metrics,
    checked_rollouts,
    checked_weights,
)

# what a program says of itself, in words of its own
RECORD = "record.json"
_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Recording:
    """What a program left behind, checked: rollouts are those of lines, scored by our environment."""

    metrics: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    rollouts: list[Rollout]
    weights: dict[str, Tensor]
    seconds: float
    environment: Environment
    chat: Chat


def train_with_program(job: Job, program: Program) -> None:
    """Write what our own trainer writes or, for a program that fails, hangs or writes what it should not, nothing."""
    recording, written = record(job, program), job.out / "attempt" / "out"
    if (written / ADAPTER).is_dir():
        shutil.rmtree(job.out / ADAPTER, ignore_errors=True)
        os.replace(written / ADAPTER, job.out / ADAPTER)
        link_adapter(job.out)
    else:
        save_weights(recording.weights, job.out / "model.safetensors")
    write_jsonl(job.out / "timings.jsonl", [{"seconds": round(recording.seconds, 3)}])
    write_json(job.out / SHADOW, {"steps": job.run.training.steps, "parted": {}})
    write_jsonl(job.out / "rollouts.jsonl", _rows(recording, job.run.training.group_size))
    if (own := written / RECORD).exists():
        os.replace(own, job.out / RECORD)
    write_jsonl(job.out / "metrics.jsonl", recording.metrics)
    shutil.rmtree(job.out / "attempt")


def _rows(recording: Recording, size: int) -> Iterator[dict[str, Any]]:
    """Yield lines as our own trainer writes them (docs/diagnostics.md), with null for what a program did not record."""
    place, step = 0, 0
    for line, current in zip(recording.lines, recording.rollouts, strict=True):
        place = place + 1 if line["step"] == step else 0
        step = line["step"]
        values = iter(line.get("logprobs", ()))
        sampler = [next(values, None) if bit else None for bit in line["sampled"]]
        said = as_sampled(current, sampler, recording.chat)
        yield {
            "step": step,
            "group": place // size,
            "rollout": place,
            "row": line["row"],
            "reward": current.reward,
            "trained_reward": line["reward"],
            "parts": current.parts,
            "advantage": line.get("advantage"),
            **said,
            "trained": _trained(line, said["sampled"], recording.chat),
        }


def _trained(line: dict[str, Any], sampled: dict[str, Any], chat: Chat) -> dict[str, Any]:
    """Return the sequence that was trained on: the sampled one, unless the program recorded its own."""
    unknown = dict.fromkeys(("trainer", "reference", "advantage"))
    if "trained" not in line:
        loss = "".join(map(str, line["loss"])) if "loss" in line else None
        return {**sampled, "loss": loss, "attention": None, **unknown}
    own = line["trained"]
    ids, places = own["ids"], carried(line["ids"], own["ids"])
    return {
        "ids": ids,
        "text": token_texts(ids, chat),
        "role": "".join("t" if at is None else sampled["role"][at] for at in places),
        "loss": "".join(map(str, own["loss"])),
        "attention": "".join(map(str, own["attention"])),
        "sampler": [None if at is None else sampled["sampler"][at] for at in places],
        **unknown,
    }


def record(job: Job, program: Program, what: str = "run", *, recorded: bool = False) -> Recording:
    """Run the program in job.out/attempt and check what it wrote; `what` is done, for the line of an error."""
    run, attempt = job.run, job.out / "attempt"
    written = attempt / "out"
    shutil.rmtree(written, ignore_errors=True)
    written.mkdir(parents=True)
    asked = Asked(
        run=run,
        environment=job.trained_in,
        base_model=str(job.base_model.resolve()),
        rows=str(job.rows.resolve()),
        out=str(written.resolve()),
        checkpoint="",
        rollouts_every=job.diagnostics.rollouts_every,
        rollouts_kept=job.diagnostics.rollouts_kept,
        protocol=PROTOCOL,
        record=recorded,
    )
    asked = replace(asked, checkpoint=str(_checkpoint(attempt, asked, program).resolve()))
    write_json(attempt / "params.json", asdict(asked))
    name = f"{what} {run.environment}/{run.arm}/{run.seed}"
    try:
        seconds = _watched(program, attempt, run.training.steps)
        metrics = checked_metrics(written / "metrics.jsonl", run.training.steps)
        lines = checked_rollouts(written / "rollouts.jsonl")
        known = {row.id: row for row in read_rows(run.environment, job.rows)}
        for number, line in enumerate(lines, start=1):
            if line["row"] not in known:
                raise InputError(
                    f"{written / 'rollouts.jsonl'}:{number}: row '{line['row']}' is unknown, expected an id of {job.rows}"
                )
        weights = checked_weights(written, job.base_model)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    environment = build_environment(run.environment, job.trained_in)
    chat = Chat(job.base_model)
    rollouts = [
        rebuilt(
            known[line["row"]],
            line["ids"],
            line["sampled"],
            line.get("logprobs", [0.0] * sum(line["sampled"])),
            environment,
            chat,
        )
        for line in lines
    ]
    return Recording(metrics, lines, rollouts, weights, seconds, environment, chat)


def _checkpoint(attempt: Path, asked: Asked, program: Program) -> Path:
    """A folder that only the same run finds again: those of a run with other settings are removed."""
    files = [*weight_files(Path(asked.base_model, "model.safetensors")), Path(asked.rows)]
    name = settings_digest(asked, program.argv, *map(sha256, files))
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
    environment = variables_apart() if program.apart else dict(os.environ)
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
                    "the program was killed: no row was added to metrics.jsonl for "
                    f"{program.stall_seconds:g} s (command.stall_seconds)"
                )
    if process.returncode:
        raise InputError(
            f"the program ended with status {process.returncode}: {last_line(log)} (full log: {log})"
        )
    return time.monotonic() - begin
