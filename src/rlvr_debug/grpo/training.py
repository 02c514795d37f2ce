"""What a training is given, changes and returns, what each of its steps tells an observer, and checkpoints: whole or not there."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment
from rlvr_debug.files import read_json, read_jsonl, write_json, write_jsonl
from rlvr_debug.grpo.loss import Experience, Loss, policy_loss
from rlvr_debug.grpo.policy import Adapter, Policy
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.shadow import Shadow
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.models.base_model import read_tensors, save_weights
from rlvr_debug.sampling.base import PolicySampler
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout


@dataclass(frozen=True)
class Training:
    """What a training is given, and what stays the same from step to step; shadow compares its stages with another run's."""

    chat: Chat
    environment: Environment
    rows: Sequence[Row]
    settings: TrainingSettings
    seed: int
    stages: Stages = field(default_factory=Stages)
    processes: Processes = field(default_factory=Processes)
    # asked before an update, it returns what measures the sampler's gap after it (SyncCheck)
    check: (
        Callable[[Training, Policy, list[Rollout]], Callable[[Policy, int], float | None]] | None
    ) = None
    shadow: Shadow | None = None

    @property
    def loss_of(self) -> Loss:
        return self.shadow.loss if self.shadow else policy_loss


@dataclass(frozen=True)
class TrainerState:
    """What a step changes. `step` counts those made; `rng` draws the rows and the seeds of sampling."""

    step: int
    policy: Policy
    optimizer: Optimizer
    scheduler: Any
    sampler: PolicySampler
    rng: random.Random


@dataclass(frozen=True)
class Update:
    """What the optimizer steps of a batch were computed from; the lists have one entry per optimizer step.

    logprobs: the policy's before the first, [B, T]; grad_norms: before clipping; passes: the log-probabilities at each.
    """

    logprobs: Tensor
    losses: list[float]
    grad_norms: list[float]
    passes: list[Tensor]


@dataclass(frozen=True)
class Step:
    """What one step made, in the main process; reference: [B, T], wherever the KL goes."""

    number: int
    training: Training
    policy: Policy
    rollouts: list[Rollout]
    experience: Experience
    reference: Tensor | None
    update: Update
    sync_gap: float | None


@dataclass
class Progress:
    """What was recorded, of a step or up to now: rows of metrics, seconds by stage, some of the rollouts.

    parted: by stage in which step another run would have parted from this one.
    """

    metrics: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[dict[str, float]] = field(default_factory=list)
    rollouts: list[dict[str, Any]] = field(default_factory=list)
    parted: dict[str, int] = field(default_factory=dict)

    def add(self, step: Progress) -> None:
        self.metrics += step.metrics
        self.seconds += step.seconds
        self.rollouts += step.rollouts

    def part(self, stages: Iterable[str]) -> None:
        """Take note of stages that have parted by the last step."""
        self.parted = {**dict.fromkeys(sorted(stages), len(self.metrics)), **self.parted}


class Observer:
    """Records nothing, in the main process; others override its methods, of which none changes what is trained."""

    def begin_step(self, state: TrainerState) -> None:
        """Take note of the state before a step."""

    def end_stage(self, stage: str) -> None:
        """Take note that a stage of the step is over."""

    def before_optimizer_step(self, policy: Policy, optimizer: Optimizer) -> None:
        """Look at the weights and their clipped gradient; of a sharded policy there are only parts."""

    def after_optimizer_step(self, policy: Policy) -> None:
        """Look at the weights that the optimizer moved."""

    def end_step(self, step: Step) -> Progress:
        """Return what is to be recorded of the step."""
        return Progress([{"step": step.number}])


@dataclass(kw_only=True)
class TrainingResult(Progress):
    """What a training returns: the weights that are saved, of an adapter with their config, and what was recorded."""

    weights: dict[str, Tensor]
    adapter: Adapter | None


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, one every `every` steps; one with another fingerprint, of all that it is given, starts anew."""

    folder: Path
    fingerprint: str
    every: int

    def save(self, state: TrainerState, progress: Progress) -> None:
        """Write a checkpoint, then remove the one before: after a kill at any time one is whole."""
        done = self.folder / f"{state.step:08d}"
        unfinished = self.folder / f".{done.name}.{os.getpid()}.tmp"
        unfinished.mkdir(parents=True)
        save_weights(_tensors(state), unfinished / "state.safetensors")
        write_json(
            unfinished / "state.json",
            {
                "fingerprint": self.fingerprint,
                "step": state.step,
                "parted": progress.parted,
                "rng": state.rng.getstate(),
                "param_groups": state.optimizer.state_dict()["param_groups"],
                # its functions are made anew with it
                "scheduler": {**state.scheduler.state_dict(), "lr_lambdas": []},
            },
        )
        write_jsonl(unfinished / "metrics.jsonl", progress.metrics)
        write_jsonl(unfinished / "timings.jsonl", progress.seconds)
        write_jsonl(unfinished / "rollouts.jsonl", progress.rollouts)
        os.replace(unfinished, done)
        for other in self.folder.iterdir():
            if other != done:
                shutil.rmtree(other)

    def restore(self, state: TrainerState) -> tuple[TrainerState, Progress]:
        """Return the state of the last checkpoint, put into `state`, and what was recorded up to it; without one, `state`."""
        # what begins with a dot was being written when the run ended
        whole = sorted(self.folder.glob("[0-9]*"))
        if not whole:
            return state, Progress()
        kept = read_json(whole[-1] / "state.json")
        if kept["fingerprint"] != self.fingerprint:
            return state, Progress()
        _put_back(state, read_tensors(whole[-1] / "state.safetensors"), kept)
        version, internal, gauss = kept["rng"]
        state.rng.setstate((version, tuple(internal), gauss))
        names = ("metrics", "timings", "rollouts")
        records = (read_jsonl(whole[-1] / f"{name}.jsonl") for name in names)
        metrics, seconds, rollouts = ([row for _, row in rows] for rows in records)
        progress = Progress(metrics, seconds, rollouts, kept["parted"])
        return replace(state, step=kept["step"]), progress

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _tensors(state: TrainerState) -> dict[str, Tensor]:
    weights = state.policy.weights()
    tensors = {f"policy/{name}": tensor for name, tensor in _trained(state).items()}
    tensors |= {
        f"sampler/{name}": tensor
        for name, tensor in state.sampler.weights().items()
        # a sampler that was not given all of them; it may be on another device
        if not torch.equal(tensor.cpu(), weights[name].cpu())
    }
    for index, values in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": value for key, value in values.items()}
    return tensors


def _trained(state: TrainerState) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in state.policy.model.named_parameters() if p.requires_grad}


def _put_back(state: TrainerState, tensors: Mapping[str, Tensor], kept: Mapping[str, Any]) -> None:
    for name, parameter in _trained(state).items():
        parameter.copy_(tensors[f"policy/{name}"])
    others: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "sampler":
            others[rest] = tensor
        elif kind == "optimizer":
            index, _, key = rest.partition("/")
            moments.setdefault(int(index), {})[key] = tensor
    state.sampler.begin(state.policy, others, kept["step"])
    state.optimizer.load_state_dict({"state": moments, "param_groups": kept["param_groups"]})
    state.scheduler.load_state_dict(kept["scheduler"])
