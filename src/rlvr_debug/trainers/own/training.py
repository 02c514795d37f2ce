"""One training run by our own trainer, as a job of a study: files in, files out."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.causes import stage_of, stages_with
from rlvr_debug.data.prepare import read_rows
from rlvr_debug.environments import build_environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256, write_json, write_jsonl
from rlvr_debug.grpo.loss import Batch, build_batch
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.processes import Processes, current_processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.shadow import Shadow
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import shared_logprobs, train
from rlvr_debug.grpo.training import Checkpoints, Training
from rlvr_debug.jobs import settings_digest
from rlvr_debug.metrics.observer import RunObserver, open_trackers
from rlvr_debug.models.base_model import (
    ADAPTER,
    kernels,
    link_adapter,
    load_model,
    one_thread,
    save_weights,
)
from rlvr_debug.models.places import weight_files
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import SERVED, base_sampler
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.trainers import SHADOW, Job, Run
from rlvr_debug.trainers.own import SYNC_BOUND


def load_policy(base_model: Path, training: TrainingSettings) -> tuple[Any, Any]:
    """Return the trained model and its reference, which is None for an adapter: its base, in compute precision, serves."""
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
) -> "Iterator[tuple[Any, SyncCheck | None]]":
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
    given = (job.run, job.environment, job.diagnostics, job.shadow)
    fingerprint = settings_digest(*given, *map(sha256, files))
    return Checkpoints(job.out / "checkpoint", fingerprint, every)


def _flat(run: Run) -> dict[str, Any]:
    """The run without nesting: all that a tracker can hold."""
    values = asdict(run)
    training = values.pop("training")
    nested = {key: json.dumps(values.pop(key), sort_keys=True) for key in ("rollouts", "options")}
    return {**values, "faults": ",".join(values["faults"]), **nested, **training}


_SEQUENCES = 4


@dataclass(frozen=True)
class SyncCheck:
    """How a sampler is asked for log-probabilities at temperature 1, and how many nats per token it may be off on average."""

    ask: Callable[[list[list[int]]], list[list[float]]]
    bound: float
    key: str

    def __call__(
        self, training: Training, policy: Policy, rollouts: list[Rollout]
    ) -> Callable[[Policy, int], float | None]:
        """Note the trainer's log-probabilities of some rollouts, as sampled, before the update; return what compares them after."""

        def chosen() -> Batch:
            # spread over the rollouts, as many for each process
            wanted = max(_SEQUENCES // training.processes.size, 1) * training.processes.size
            rows = torch.linspace(0, len(rollouts) - 1, min(wanted, len(rollouts))).long()
            some = [rollouts[b] for b in rows.tolist()]
            return build_batch(some, Stages(), training.environment, training.chat)

        batch = training.processes.broadcast(chosen)
        return partial(self._gap, training, batch, _at_1(training, policy, batch))

    def _gap(
        self, training: Training, batch: Batch, before: Tensor, policy: Policy, step: int
    ) -> float | None:
        """Return the mean absolute difference of sampler and trainer over sampled tokens, None but in the main process.

        Raise InputError where it is above the bound, or the sampler is nearer to what the trainer was than to what it is.
        """
        after = _at_1(training, policy, batch)
        if not training.processes.main:
            return None
        ids = [row[real].tolist() for row, real in zip(batch.ids, batch.real, strict=True)]
        answered = torch.zeros(batch.ids.shape)
        for row, values in zip(answered, self.ask(ids), strict=True):
            row[1 : len(values) + 1] = torch.tensor(values)
        gap, behind = (
            float((answered - logprobs)[batch.sampled].abs().mean()) for logprobs in (after, before)
        )
        found = f"step {step}: after the update the sampler is {gap:.2g} nats from the trainer on average"
        if 2 * behind < gap:
            raise InputError(
                f"{found}, but {behind:.2g} from its weights before: "
                "it has not received the trained weights"
            )
        if not gap <= self.bound:
            raise InputError(
                f"{found}, expected at most {self.bound:g} ({self.key}): it lacks some of "
                "the trained weights, or computes differently"
            )
        return gap


def _at_1(training: Training, policy: Policy, batch: Batch) -> Tensor:
    """Return the trainer's log-probabilities at temperature 1, as a server gives a prompt's: [B, T]."""
    settings = replace(training.settings, temperature=1.0)
    return shared_logprobs(policy.shared, batch, settings, Stages(), training.processes)
