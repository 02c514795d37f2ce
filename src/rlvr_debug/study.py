"""The jobs of a study, one function per rule of the workflow: files in, files out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.config import Run
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.data.rows import Row
from rlvr_debug.diagnostics.settings import DiagnosticSettings
from rlvr_debug.diagnostics.trackers import open_trackers
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.evaluation import evaluate
from rlvr_debug.faults import faulty_stages
from rlvr_debug.files import sha256, write_json, write_jsonl
from rlvr_debug.grpo.checkpoint import Checkpoints
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.processes import current_processes
from rlvr_debug.grpo.trainer import train
from rlvr_debug.models.base_model import load_model, load_weights, model_config, save_weights
from rlvr_debug.probes import PROBES, Measurement, Subject
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from rlvr_debug.sampling.rollouts import rollout

__all__ = ["case_subject", "evaluate_model", "probe_case", "train_run"]


def _one_thread() -> None:
    # one process per core; with more threads the order of sums, and so the bytes, could differ
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def _sampler(base_model: Path, chat: Chat, weights: Path | None = None) -> Qwen2Sampler:
    file = weights or base_model / "model.safetensors"
    return Qwen2Sampler(model_config(base_model), load_weights(file), chat.eos_id)


def train_run(
    run: Run,
    environment: Mapping[str, Any],
    base_model: Path,
    rows: Path,
    out: Path,
    diagnostics: DiagnosticSettings,
) -> None:
    """Train one arm with one seed. Writes model.safetensors, metrics.jsonl, rollouts.jsonl and, apart,
    timings.jsonl.

    environment: its block of params.yaml; rows: training rows; out: a folder, which holds a
    `checkpoint` until the run is done: the same run, interrupted, goes on from there. With LoRA,
    `adapter` beside the merged weights. Several processes may run it together, on the same files.
    """
    _one_thread()
    processes = current_processes(run.training)
    training_rows = _enough_rows(read_rows(run.environment, rows), run, rows)
    chat = Chat(base_model)
    checkpoints = _checkpoints(run, environment, base_model, rows, out, diagnostics)
    attention = run.training.attn_implementation
    name = f"{run.environment}-{run.arm}-{run.seed}"
    trackers = diagnostics.trackers if processes.main else ()
    with open_trackers(trackers, out / "trackers", name, _flat(run)) as log:
        result = train(
            load_model(base_model, attention),
            load_model(base_model, attention),
            _sampler(base_model, chat),
            chat,
            build_environment(run.environment, environment),
            training_rows,
            run.training,
            faulty_stages(run.faults, run.swap),
            run.seed,
            checkpoints,
            processes,
            diagnostics,
            log,
        )
    if not processes.main:
        return
    if result.adapter:
        save_weights(result.adapter.weights, out / "adapter" / "adapter_model.safetensors")
        result.adapter.config.save_pretrained(out / "adapter")
    save_weights(result.weights, out / "model.safetensors")
    write_jsonl(out / "timings.jsonl", result.seconds)
    write_jsonl(out / "rollouts.jsonl", result.rollouts)
    write_jsonl(out / "metrics.jsonl", result.metrics)
    if checkpoints:
        checkpoints.remove()


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
    files = [base_model / "model.safetensors", base_model / "tokenizer.json", rows]
    given = [run.to_json(), environment, asdict(diagnostics), *map(sha256, files)]
    fingerprint = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    return Checkpoints(out / "checkpoint", fingerprint, run.training.save_steps)


def _flat(run: Run) -> dict[str, Any]:
    """What the run was told, without nesting: all that a tracker can hold."""
    told = run.to_json()
    training = told.pop("training")
    lists = {key: ",".join(told.pop(key)) for key in ("faults", "swap")}
    return {**told, **lists, **training}


def _enough_rows(rows: list[Row], run: Run, path: Path) -> list[Row]:
    if len(rows) < run.training.prompts_per_step:
        raise InputError(
            f"{path}: {len(rows)} training rows, expected at least "
            f"training.prompts_per_step ({run.training.prompts_per_step})"
        )
    return rows


def evaluate_model(
    environment_name: str,
    environment: Mapping[str, Any],
    base_model: Path,
    weights: Path | None,
    rows: Path,
    temperature: float,
    seed: int,
    out: Path,
) -> None:
    """Held-out evaluation of the base model, or of trained `weights`, into a JSON file."""
    _one_thread()
    chat = Chat(base_model)
    result = evaluate(
        read_rows(environment_name, rows),
        build_environment(environment_name, environment),
        chat,
        _sampler(base_model, chat, weights),
        temperature=temperature,
        seed=seed,
    )
    write_json(out, result)


def probe_case(
    run: Run, environment: Mapping[str, Any], base_model: Path, rows: Path, out: Path
) -> list[Measurement]:
    """Step-0 checks of the case's trainer, also into a JSON file: measurement by probe name."""
    subject = case_subject(run, environment, base_model, rows)
    measurements = [probe(subject) for probe in PROBES]
    write_json(out, {m.probe: asdict(m) for m in measurements})
    return measurements


def case_subject(run: Run, environment: Mapping[str, Any], base_model: Path, rows: Path) -> Subject:
    """The case's trainer before its first update, with rollouts of its first rows."""
    _one_thread()
    training, chat = run.training, Chat(base_model)
    policy = build_policy(
        load_model(base_model, training.attn_implementation),
        None if training.lora_r else load_model(base_model, training.attn_implementation),
        training,
        run.seed,
    )
    built = build_environment(run.environment, environment)
    sampler = _sampler(base_model, chat)
    prompts = _enough_rows(read_rows(run.environment, rows), run, rows)
    prompts = prompts[: training.prompts_per_step]
    stages = faulty_stages(run.faults, run.swap)
    rollouts = rollout(
        [row for row in prompts for _ in range(training.group_size)],
        built,
        chat,
        sampler,
        temperature=training.temperature,
        seed=run.seed,
        max_prompt_length=training.max_prompt_length,
        truncation_side=training.truncation_side,
        max_new_tokens=stages.max_new_tokens(built),
    )
    return Subject(policy, sampler, stages, training, built, chat, rollouts)
