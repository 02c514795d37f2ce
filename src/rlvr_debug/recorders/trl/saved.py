"""What a trainer of TRL saves, by the names of the architecture's own weights."""

import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from rlvr_debug.recorders.keeping import Cut, kept, parameters_of
from rlvr_debug.replay.network import is_adapter, plain_weights
from rlvr_debug.replay.record import Record

_UNSAVED = 200_000_000  # weights, from which on nothing is saved to be compared


def saved_weights(trainer: Any, record: Record, cut: Cut) -> Mapping[str, Tensor] | None:
    """Return what the trainer saves, an adapter added to its weights; None, with a note, where it saves nothing that can be read."""
    last = record.weights[-1]
    sizes = {name: tensor.numel() for name, tensor in last.items()}
    sizes |= {name: shape.numel() for name, shape in cut.weights.items()}
    if sum(sizes.values()) > _UNSAVED:
        record.notes.append("the model is large: what the trainer saves was not compared")
        return None
    _save_as_begun(trainer, record, cut)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer.save_model(folder)
        except Exception as error:  # the user's own method
            record.notes.append(f"saving failed: {type(error).__name__}: {error}")
            return None
        adapter = Path(folder, "adapter_model.safetensors")
        if cut.weights and any(map(is_adapter, last)):
            what = "the adapter that the trainer saves was not compared"
            record.notes.append(f"weights are sharded: {what}")
            return None
        if adapter.is_file():
            saved = load_file(adapter)
            held = {
                name: saved.get(_in_a_file(name), tensor * 0) if is_adapter(name) else tensor
                for name, tensor in last.items()
            }
            return plain_weights(held, record.scalings)
        found: dict[str, Tensor] = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            found |= load_file(file)
        others = found.keys() - last.keys() and last.keys() - found.keys()
        if not others or any(map(is_adapter, last)):
            return found or None
        try:
            return _read_again(trainer, folder)
        except Exception as error:  # whatever an architecture's class says of its files
            record.notes.append(f"what was saved cannot be read: {type(error).__name__}: {error}")
            return None


def _save_as_begun(trainer: Any, record: Record, cut: Cut) -> None:
    """Have the trainer save the weights of the beginning: one that keeps what it saved first will save them again."""
    if cut.weights or record.elements:
        return
    held, first = parameters_of(trainer.accelerator.unwrap_model(trainer.model)), record.weights[0]
    last = {name: held[name].detach().clone() for name in record.trainable if name in first}

    def put(weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name in last:
                held[name].copy_(weights[name])

    with tempfile.TemporaryDirectory() as folder:
        try:
            put(first)
            with suppress(Exception):  # the next one says so
                trainer.save_model(folder)
        finally:
            put(last)


def _read_again(trainer: Any, folder: str) -> Mapping[str, Tensor]:
    """Return what transformers reads from a folder whose tensors have other names, such as one for each expert."""
    kind = type(trainer.accelerator.unwrap_model(trainer.model))
    with torch.random.fork_rng():
        read, told = kind.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    missing = set(told["missing_keys"])
    return {name: kept(p) for name, p in read.named_parameters() if name not in missing}


def _in_a_file(name: str) -> str:
    """Return the name that peft gives a weight of an adapter in a file: without the adapter's."""
    whole = re.sub(r"\.modules_to_save\.[^.]+\.", ".", name)
    bare = re.sub(r"\.(lora_magnitude_vector|ia3_l)\.[^.]+(\.weight)?$", r".\1", whole)
    return re.sub(r"\.(lora_[AB])\.[^.]+\.", r".\1.", bare)
