"""What a program is given, params.json, and what it writes, line by line (docs/trainers.md), checked before it counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le, MinLen
from pydantic import Strict
from torch import Tensor

from rlvr_debug.blocks import Count, Entry, Flag, Keyed, Natural, NonNegative, Number, checked
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_jsonl
from rlvr_debug.models.base_model import ADAPTER, load_weights, save_weights, with_adapter
from rlvr_debug.trainers import Run

PROTOCOL: Literal[1] = 1
RECORDED = "record"  # the folder with a record of the steps, where a program writes one


@dataclass(frozen=True)
class Asked(Entry):
    """params.json, whose path is a program's last argument. Paths are absolute."""

    run: Run
    """The run as in params.yaml: seed; training (steps, learning_rate, ... as in docs/trainer.md); options, the program's
    own settings; environment, its name; faults: planted, or the user's reward function, of trainer trl only."""
    environment: Mapping[str, Any]
    """Settings of the environment for training rollouts."""
    base_model: str
    """Folder of the base model."""
    rows: str
    """Training rows, one JSON object a line."""
    out: str
    """Folder to write to. It is empty at the start."""
    checkpoint: str
    """Folder that is kept when the run is interrupted; using it is optional."""
    rollouts_every: Natural
    """Record rollouts of step 1 and of every step that this divides; 0: of none."""
    rollouts_kept: Natural
    """How many of a step's first rollouts are recorded; 0: all."""
    protocol: Literal[1]
    """Version of this protocol."""
    record: Flag = False
    """Whether a record of all steps (docs/record.md) is wanted in the folder `record`, beside the other files; a program
    may leave it out."""

    @staticmethod
    def read(path: Path) -> "Asked":
        """Raise InputError for what is not a params.json."""
        return checked(Asked, read_json(path), path)


# a line of metrics.jsonl, one per batch of rollouts, written as it comes: the step from 1, without gaps; the mean reward of
# the batch's rollouts; the gradient's norm before clipping; tokens that the model wrote, and those that the loss counts.
# Other keys are numbers under the names of docs/diagnostics.md.
Metrics = Annotated[
    dict[str, Any],
    Keyed(
        {
            "step": Count,
            "reward": Number,
            "grad_norm": NonNegative,
            "sampled_tokens": Natural,
            "trained_tokens": Natural,
        },
        whole=True,
        others=Number,
    ),
]
_Ids = Annotated[tuple[Natural, ...], MinLen(1)]
_Bits = tuple[Annotated[int, Strict(), Ge(0), Le(1)], ...]


@dataclass(frozen=True)
class TrainedSequence(Entry):
    """The sequence that the loss is computed on. For each id: whether the loss counts it, and the model may see it."""

    ids: _Ids
    loss: _Bits
    attention: _Bits


@dataclass(frozen=True)
class RecordedRollout(Entry):
    """A line of rollouts.jsonl, one per recorded rollout; those of a group stand together. Probes read the first steps'.

    step: of training, from 1. row: the row's id. ids: of prompt, replies and tools' turns, as they were sampled.
    sampled: for each id, 1 where the model wrote it. reward: what the trainer trained on. logprobs: for each sampled id,
    what it was sampled with, in nats. loss: for each id, 1 where the loss counts it. advantage: the rollout's. trained:
    where the trainer makes a sequence of its own; then `loss` stands there.
    """

    step: Count
    row: str
    ids: _Ids
    sampled: _Bits
    reward: Number
    logprobs: tuple[Number, ...] = ()
    loss: _Bits = ()
    advantage: Number = 0.0
    trained: TrainedSequence = TrainedSequence((), (), ())


def checked_metrics(path: Path, steps: int) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, one per step. Raises InputError at the first that is not as it should be."""
    rows = []
    for number, row in read_jsonl(path):
        checked(Metrics, row, f"{path}:{number}")
        rows.append(row)
        if row["step"] != len(rows):
            raise InputError(f"{path}:{number}: step is {row['step']}, expected {len(rows)}")
    if len(rows) != steps:
        raise InputError(f"{path}: {len(rows)} steps, expected {steps}")
    return rows


def checked_rollouts(path: Path) -> list[dict[str, Any]]:
    """The rows of rollouts.jsonl; none where the program wrote no such file."""
    if not path.exists():
        return []
    rows = []
    for number, row in read_jsonl(path):
        place = f"{path}:{number}"
        checked(RecordedRollout, row, place)
        length, trained = len(row["ids"]), row.get("trained", {})
        lengths = {"sampled": length, "logprobs": sum(row["sampled"]), "loss": length}
        lengths |= {f"trained.{key}": len(trained["ids"]) for key in trained}
        given = {**row, **{f"trained.{key}": values for key, values in trained.items()}}
        for key, expected in lengths.items():
            if key in given and len(given[key]) != expected:
                raise InputError(
                    f"{place}: key '{key}' has {len(given[key])} items, expected {expected}"
                )
        if row["sampled"][0]:
            raise InputError(f"{place}: key 'sampled' begins with 1, expected 0 (a prompt token)")
        rows.append(row)
    return rows


def checked_weights(out: Path, base_model: Path) -> dict[str, Tensor]:
    """Return the trained weights by the base model's names, float32: of model.safetensors, or with adapter/ merged in."""
    file = out / "model.safetensors"
    base = load_weights(base_model / "model.safetensors")
    if (adapter := out / ADAPTER).is_dir():
        file, config = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
        found = with_adapter(base, load_weights(file), read_json(config), config)
    elif file.exists():
        found = load_weights(file)
    else:
        raise InputError(f"{out}: no model.safetensors and no adapter/; save trained weights there")
    for name, tensor in base.items():
        if name not in found:
            raise InputError(f"{file}: tensor '{name}' is missing")
        if found[name].shape != tensor.shape:
            raise InputError(
                f"{file}: tensor '{name}' has shape {tuple(found[name].shape)}, "
                f"expected {tuple(tensor.shape)}"
            )
        if not torch.isfinite(found[name]).all():
            raise InputError(f"{file}: tensor '{name}' holds NaN or infinity, expected numbers")
    return {name: found[name] for name in base}


def save_trained(model: Any, out: Path) -> None:
    """Write the weights of a model of transformers, or its adapter as peft does, to `out`."""
    if hasattr(model, "peft_config"):
        model.save_pretrained(str(out / ADAPTER), safe_serialization=True)
        return
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    save_weights(state, out / "model.safetensors")
