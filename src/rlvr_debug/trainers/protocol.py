"""What a program is told and what it writes: schemas, and the checks that nothing bad is counted as a result.

The schemas are the *.schema.json beside this file; docs/trainers.md explains them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, read_jsonl
from rlvr_debug.models.base_model import load_model, load_weights, read_tensors, save_weights
from rlvr_debug.schemas import check_schema, validator_of

PROTOCOL = 1
RECORDED = "record"  # the folder with a record of the steps, where a program writes one


@dataclass(frozen=True)
class Told:
    """params.json. Paths are absolute; run is as Run.to_json has it. record: whether a record of the steps is asked for."""

    run: Mapping[str, Any]
    environment: Mapping[str, Any]
    base_model: str
    rows: str
    out: str
    checkpoint: str
    rollouts_every: int
    rollouts_kept: int
    record: bool = False
    protocol: int = PROTOCOL

    @staticmethod
    def read(path: Path) -> Told:
        """Raise InputError for what is not a params.json."""
        value = read_json(path)
        _check(value, "params", str(path))
        return Told(**value)


def checked_metrics(path: Path, steps: int) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, one per step. Raises InputError at the first that is not as it should be."""
    rows = []
    for number, row in read_jsonl(path):
        _check(row, "metrics", f"{path}:{number}")
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
        _check(row, "rollouts", place)
        lengths = {
            "sampled": len(row["ids"]),
            "logprobs": sum(row["sampled"]),
            "loss": len(row["ids"]),
        }
        for key, expected in lengths.items():
            if key in row and len(row[key]) != expected:
                raise InputError(
                    f"{place}: key '{key}' has {len(row[key])} items, expected {expected}"
                )
        for key, values in row.get("trained", {}).items():
            if len(values) != len(row["trained"]["ids"]):
                raise InputError(
                    f"{place}: key 'trained.{key}' has {len(values)} items, expected {len(row['trained']['ids'])}"
                )
        if row["sampled"][0]:
            raise InputError(f"{place}: key 'sampled' begins with 1, expected a prompt")
        rows.append(row)
    return rows


def checked_weights(out: Path, base_model: Path) -> dict[str, Tensor]:
    """The trained weights by the base model's names, float32: of model.safetensors, or with adapter/ merged in.

    Raises InputError where there are none, or they are not finite or not this model's.
    """
    file = out / "model.safetensors"
    base = load_weights(base_model / "model.safetensors")
    if (out / "adapter").is_dir():
        file = out / "adapter" / "adapter_model.safetensors"
        found = _merged(out / "adapter", base_model)
    elif file.exists():
        found = load_weights(file)
    else:
        raise InputError(f"{out}: no model.safetensors and no adapter/, expected trained weights")
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
        model.save_pretrained(str(out / "adapter"), safe_serialization=True)
        return
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    save_weights(state, out / "model.safetensors")


def _merged(adapter: Path, base_model: Path) -> dict[str, Tensor]:
    """peft merges it; read_tensors first, so that a bad file is one line."""
    read_tensors(adapter / "adapter_model.safetensors")
    if not (adapter / "adapter_config.json").exists():
        raise InputError(f"{adapter}: no adapter_config.json, expected peft's")
    from peft import PeftModel

    model = load_model(base_model, "sdpa")
    try:
        merged: Any = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise InputError(
            f"{adapter}: expected an adapter of the base model, found: {error}"
        ) from None
    return {name: tensor.detach() for name, tensor in merged.state_dict().items()}


def _check(value: Any, name: str, place: str) -> None:
    check_schema(value, validator_of(Path(__file__).with_name(f"{name}.schema.json")), place)
