"""One training run by our own trainer, as a job of a study: files in, files out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from rlvr_debug.arms import Run
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.diagnostics.settings import DiagnosticSettings
from rlvr_debug.diagnostics.trackers import open_trackers
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.faults import faulty_stages
from rlvr_debug.files import sha256, write_jsonl
from rlvr_debug.grpo.checkpoint import Checkpoints
from rlvr_debug.grpo.processes import Processes, current_processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.sync_check import SyncCheck
from rlvr_debug.grpo.trainer import train
from rlvr_debug.models.base_model import load_model, save_weights
from rlvr_debug.models.places import weight_files
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.serving.choose import base_sampler, served_policy

__all__ = ["enough_rows", "load_policy", "one_thread", "train_run"]


def one_thread() -> None:
    # one process per core; with more threads the order of sums, and so the bytes, could differ
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def load_policy(base_model: Path, training: TrainingSettings) -> tuple[Any, Any]:
    """The model that is trained and its reference, which an adapter does without.

    Weights that nothing moves are held in the precision that they are computed in.
    """
    if training.lora_r:
        dtype = torch.bfloat16 if training.bf16 else torch.float32
        return load_model(base_model, training.attn_implementation, dtype), None
    model, reference = (load_model(base_model, training.attn_implementation) for _ in range(2))
    return model, reference


def train_run(
    run: Run,
    environment: Mapping[str, Any],
    base_model: Path,
    rows: Path,
    out: Path,
    diagnostics: DiagnosticSettings,
    sampler: str = "in-process",
    server: Mapping[str, Any] = MappingProxyType({}),
    endpoint: Path | None = None,
) -> None:
    """Train one arm with one seed, by our own trainer. Writes model.safetensors, metrics.jsonl,
    rollouts.jsonl and, apart, timings.jsonl.

    sampler, server: of params.yaml; only vLLM's server answers in training; endpoint: the file of one that
    several runs share. environment: its block of params.yaml; rows: training rows; out: a folder, which holds a
    `checkpoint` until the run is done: the same run, interrupted, goes on from there. With LoRA,
    `adapter` beside the merged weights. Several processes may run it together, on the same files.
    """
    one_thread()
    processes = current_processes(run.training)
    training_rows = enough_rows(read_rows(run.environment, rows), run, rows)
    chat = Chat(base_model)
    checkpoints = _checkpoints(run, environment, base_model, rows, out, diagnostics)
    name = f"{run.environment}-{run.arm}-{run.seed}"
    trackers = diagnostics.trackers if processes.main else ()
    with (
        open_trackers(trackers, out / "trackers", name, _flat(run)) as log,
        _sampling(run, name, base_model, chat, sampler, server, endpoint, processes) as sampling,
    ):
        result = train(
            *load_policy(base_model, run.training),
            sampling.sampler,
            chat,
            build_environment(run.environment, {**environment, **run.rollouts}),
            training_rows,
            run.training,
            faulty_stages(run.faults),
            run.seed,
            checkpoints,
            processes,
            diagnostics,
            log,
            sampling.check,
        )
    if not processes.main:
        return
    if result.adapter:
        result.adapter.save(out / "adapter")
    save_weights(result.weights, out / "model.safetensors")
    write_jsonl(out / "timings.jsonl", result.seconds)
    write_jsonl(out / "rollouts.jsonl", result.rollouts)
    write_jsonl(out / "metrics.jsonl", result.metrics)
    if checkpoints:
        checkpoints.remove()


@dataclass(frozen=True)
class _Sampling:
    """sampler: of the process that rolls out; check: of every update, where that is a server's."""

    sampler: Any
    check: SyncCheck | None


@contextmanager
def _sampling(
    run: Run,
    name: str,
    base_model: Path,
    chat: Chat,
    sampler: str,
    server: Mapping[str, Any],
    endpoint: Path | None,
    processes: Processes,
) -> Iterator[_Sampling]:
    if sampler != "vllm":
        yield _Sampling(base_sampler(base_model, chat), None)
        return
    bound = server["vllm"]["sync_bound"]
    if not processes.main:
        # the check needs all processes for the trainer's side of it
        yield _Sampling(None, SyncCheck(lambda ids: [], bound))
        return
    lora_r = run.training.lora_r
    with served_policy(server, base_model, endpoint, name, lora_r, chat) as asked:
        yield _Sampling(asked, SyncCheck(asked.logprobs, bound))


def _checkpoints(
    run: Run,
    environment: Mapping[str, Any],
    base_model: Path,
    rows: Path,
    out: Path,
    diagnostics: DiagnosticSettings,
) -> Checkpoints | None:
    if not run.training.save_steps:
        return None
    weights = weight_files(base_model / "model.safetensors")
    files = [*weights, base_model / "tokenizer.json", rows]
    given = [run.to_json(), environment, asdict(diagnostics), *map(sha256, files)]
    fingerprint = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    return Checkpoints(out / "checkpoint", fingerprint, run.training.save_steps)


def _flat(run: Run) -> dict[str, Any]:
    """What the run was told, without nesting: all that a tracker can hold."""
    told = run.to_json()
    training = told.pop("training")
    nested = {key: json.dumps(told.pop(key), sort_keys=True) for key in ("rollouts", "options")}
    return {**told, "faults": ",".join(told["faults"]), **nested, **training}


def enough_rows(rows: list[Row], run: Run, path: Path) -> list[Row]:
    if len(rows) < run.training.prompts_per_step:
        raise InputError(
            f"{path}: {len(rows)} training rows, expected at least "
            f"training.prompts_per_step ({run.training.prompts_per_step})"
        )
    return rows
