"""Loading, running and saving models: safetensors and JSON only, nothing unpickled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, replacing
from rlvr_debug.models.architectures import FAMILIES, check_config, why_unread
from rlvr_debug.models.places import index_of, shards, weight_files


def one_thread() -> None:
    """Make torch compute the same bytes each time, on one core."""
    # with more threads the order of sums, and so the bytes, could differ
    torch.set_num_threads(1)
    # without it cuBLAS refuses matrix products in this mode; read before the first of them
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # as use_deterministic_algorithms(True), which loads torch's compiler too: a second and a half
    torch.set_deterministic_debug_mode("error")
    # else every new tensor is filled with NaN first, which tells only who reads what was never written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def kernels() -> dict[str, Any]:
    """Return what the bytes of a result depend on beside code and data: torch, and the kernels that it takes here."""
    return {
        "torch": torch.__version__,
        "aten": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        **{name: os.environ.get(name) for name in ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR")},
    }


def model_config(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = read_json(path / "config.json")
    return config


def load_weights(file: Path) -> dict[str, Tensor]:
    """By name, in float32 whatever the file holds. Where it was cut into shards, of all of them."""
    parts = (read_tensors(part) for part in weight_files(file))
    found = {name: tensor.float() for part in parts for name, tensor in part.items()}
    if not file.exists() and (missing := shards(index_of(file.parent)).keys() - found.keys()):
        raise InputError(f"{file}: tensor '{min(missing)}' is in no shard, expected it in one")
    return found


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
    try:
        with replacing(file) as temporary:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)
    except SafetensorError as error:
        raise InputError(f"{file}: it could not be written: {error}") from None


def _no() -> bool:
    return False


def load_model(path: Path, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return the trainable model, of transformers' class for its config.json, in `dtype`, dropout off."""
    described = model_config(path)
    check_config(described, path / "config.json")
    family = None if why_unread(described) else FAMILIES[described["model_type"]]
    # what assisted generation and other models' losses need: two seconds of each job
    with patch.multiple("transformers.utils", is_scipy_available=_no, is_sklearn_available=_no):
        import transformers

        # by name where it is known: AutoModel would look through all that transformers has
        name = family.name if family else "Auto"
        model_class = getattr(
            transformers, family.model_class if family else "AutoModelForCausalLM"
        )
        config_class = getattr(transformers, f"{name}Config")
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config
    from transformers.utils import logging

    # under ZeRO-3 it would be cut up as it is loaded, the reference too, which no engine puts together again
    unset_hf_deepspeed_config()
    file = path / "model.safetensors"
    if missing := [part for part in weight_files(file) if not part.is_file()]:
        raise InputError(f"{missing[0]}: no such file, expected model weights")
    logging.disable_progress_bar()
    try:
        make = config_class if family else config_class.for_model
        config = make(**described, attn_implementation=attention)
        for key in [key for key in vars(config) if key.endswith(("drop", "dropout"))]:
            setattr(config, key, 0.0)
        model, info = model_class.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{file}: expected the model of config.json, found: {error}") from None
    for kind in ("missing", "unexpected", "mismatched"):
        if names := sorted(map(str, info[f"{kind}_keys"])):
            raise InputError(f"{file}: {kind} tensor {names[0]}, expected those of config.json")
    # the sampler has one tensor for both, whatever the file holds
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if config.tie_word_embeddings and family and head.weight is not embedding.weight:
        raise InputError(
            f"{file}: lm_head.weight is not model.embed_tokens.weight, expected equal tensors with "
            "tie_word_embeddings"
        )
    # a path of this machine, which peft would write down
    model.config.name_or_path = model.name_or_path = ""
    return model.eval()
