"""One training run by our own trainer, as a job of a study: files in, files out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.causes import stage_of, stages_with
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256, write_json, write_jsonl
from rlvr_debug.grpo.checkpoint import Checkpoints
from rlvr_debug.grpo.processes import Processes, current_processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.shadow import Shadow
from rlvr_debug.grpo.sync_check import SyncCheck
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import Training
from rlvr_debug.metrics.observer import RunObserver, open_trackers
from rlvr_debug.models.adapters import ADAPTER, link_adapter
from rlvr_debug.models.base_model import kernels, load_model, one_thread, save_weights
from rlvr_debug.models.places import weight_files
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.serving.choose import SERVED, base_sampler
from rlvr_debug.trainers.base import SHADOW, Job, Run
from rlvr_debug.trainers.own import SYNC_BOUND


def load_policy(base_model: Path, training: TrainingSettings) -> tuple[Any, Any]:
    """Return the model that is trained and its reference, None for an adapter, whose base is held as it is computed in."""
    if training.lora_r:
        dtype = torch.bfloat16 if training.bf16 else torch.float32
        return load_model(base_model, training.attn_implementation, dtype), None
    model, reference = (load_model(base_model, training.attn_implementation) for _ in range(2))
    return model, reference


def training_of(job: Job) -> Training:
    """What a training of the job's run is given, in one process. Raises InputError for too few rows."""
    run = job.run
    rows = read_rows(run.environment, job.rows)
    if len(rows) < run.training.prompts_per_step:
        raise InputError(
            f"{job.rows}: {len(rows)} training rows, expected at least "
            f"training.prompts_per_step ({run.training.prompts_per_step})"
        )
    environment = build_environment(run.environment, job.trained_in)
    stages = stages_with(run.faults)
    return Training(Chat(job.base_model), environment, rows, run.training, run.seed, stages)


def train_run(job: Job, then: Callable[[], None] | None = None) -> None:
    """Train one arm with one seed, by one process or several, and write what Trainer.train says, kernels.json and `adapter`.

    job.out holds a `checkpoint` until the run is done, and so is `then`, which the main process calls.
    """
    one_thread()
    processes, checkpoints = current_processes(job.run.training), _checkpoints(job)
    _train(job, processes, checkpoints)
    if not processes.main:
        return
    if then:
        then()
    if checkpoints:
        checkpoints.remove()


def _train(job: Job, processes: Processes, checkpoints: Checkpoints | None) -> None:
    """Train, and write what came of it; models are held no longer than that."""
    run, out, diagnostics = job.run, job.out, job.diagnostics
    training = training_of(job)
    name = f"{run.environment}-{run.arm}-{run.seed}"
    trackers = diagnostics.trackers if processes.main else ()
    with (
        open_trackers(trackers, out / "trackers", name, _flat(run)) as log,
        _sampling(job, name, training.chat, processes) as (sampler, check),
    ):
        shadow = None
        # several processes, or a GPU, may add in another order each time
        if job.shadow is not None and type(processes) is Processes:
            shadow = Shadow(training.stages, stages_with(job.shadow))
            training = replace(training, stages=shadow.stages, shadow=shadow)
        training = replace(training, processes=processes, check=check)
        model, reference = load_policy(job.base_model, run.training)
        observer = RunObserver(diagnostics, log)
        result = train(training, model, reference, sampler, checkpoints, observer)
    if not processes.main:
        return
    if result.adapter:
        result.adapter.save(out / ADAPTER)
        link_adapter(out)
    else:
        save_weights(result.weights, out / "model.safetensors")
    write_json(out / "kernels.json", kernels())
    write_jsonl(out / "timings.jsonl", result.seconds)
    write_jsonl(out / "rollouts.jsonl", result.rollouts)
    # by fault: whoever reads it need not import variants
    swapped = {*run.faults} ^ {*(job.shadow or ())} if shadow else set[str]()
    stages = {fault: stage_of(fault) for fault in sorted(swapped)}
    parted = {f: result.parted.get(s) for f, s in stages.items() if shadow and s in shadow.compared}
    write_json(out / SHADOW, {"steps": run.training.steps, "parted": parted})
    write_jsonl(out / "metrics.jsonl", result.metrics)


@contextmanager
def _sampling(
    job: Job, name: str, chat: Chat, processes: Processes
) -> Iterator[tuple[Any, SyncCheck | None]]:
    """Yield the sampler of the process that rolls out, and the check of every update, of a server or where options ask for it."""
    if not job.sampling.served:
        sampler, bound = base_sampler(job.base_model, chat), job.run.options.get(SYNC_BOUND)
        check = SyncCheck(sampler.logprobs, bound, f"options.{SYNC_BOUND}") if bound else None
        yield sampler, check
        return
    bound, key = job.sampling.server["vllm"]["sync_bound"], "vllm.sync_bound"
    if not processes.main:
        # the check needs all processes for the trainer's side of it
        yield None, SyncCheck(lambda ids: [], bound, key)
        return
    lora_r = job.run.training.lora_r
    served = import_module(SERVED)
    with served.served_policy(job.sampling, job.base_model, name, lora_r, chat) as asked:
        yield asked, SyncCheck(asked.logprobs, bound, key)


def _checkpoints(job: Job) -> Checkpoints | None:
    every = job.run.training.save_steps
    if not every:
        return None
    weights = weight_files(job.base_model / "model.safetensors")
    files = [*weights, job.base_model / "tokenizer.json", job.rows]
    settings = [job.run.to_json(), job.environment, asdict(job.diagnostics), job.shadow]
    given = json.dumps([*settings, *map(sha256, files)], sort_keys=True)
    fingerprint = hashlib.sha256(given.encode()).hexdigest()
    return Checkpoints(job.out / "checkpoint", fingerprint, every)


def _flat(run: Run) -> dict[str, Any]:
    """The run without nesting: all that a tracker can hold."""
    values = run.to_json()
    training = values.pop("training")
    nested = {key: json.dumps(values.pop(key), sort_keys=True) for key in ("rollouts", "options")}
    return {**values, "faults": ",".join(values["faults"]), **nested, **training}
