"""Checkpoints of a training run, whole or not there: all that a step changes, in safetensors and JSON."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.files import read_json, read_jsonl, write_json, write_jsonl
from rlvr_debug.grpo.training import Progress, TrainerState
from rlvr_debug.models.base_model import read_tensors, save_weights


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
        """Remove the folder, if there is one."""
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
