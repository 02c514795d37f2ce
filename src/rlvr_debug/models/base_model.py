"""Loading and saving models: safetensors and JSON only, nothing unpickled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json

__all__ = ["load_model", "load_weights", "model_config", "read_tensors", "save_weights"]


def model_config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = read_json(path / "config.json")
    return config


def load_weights(file: Path) -> dict[str, Tensor]:
    """By name, in float32 whatever the file holds."""
    return {name: tensor.float() for name, tensor in read_tensors(file).items()}


def read_tensors(file: Path) -> dict[str, Tensor]:
    """By name. Raises InputError for a missing file or one that is not safetensors."""
    try:
        found: dict[str, Tensor] = load_file(file)
        return found
    except FileNotFoundError:
        raise InputError(f"{file}: no such file, expected model weights") from None
    except SafetensorError as error:
        raise InputError(f"{file}: expected safetensors, found: {error}") from None


def save_weights(weights: dict[str, Tensor], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)
        os.replace(temporary, file)
    except SafetensorError as error:
        raise InputError(f"{file}: it could not be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def load_model(path: Path, attention: str) -> Any:
    """The trainable model, a transformers Qwen2ForCausalLM in float32, dropout off.

    attention: an implementation of it, by transformers' name.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**model_config(path), attn_implementation=attention)
    model = Qwen2ForCausalLM(config)
    model.load_state_dict(load_weights(path / "model.safetensors"))
    return model.to(torch.float32).eval()
