"""Models, and LoRA adapters in peft's format, all that a run with one saves: loading, saving, W + (alpha / r) B A; nothing is unpickled."""

import os
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlvr_debug.errors import InputError, short
from rlvr_debug.files import read_json, replacing
from rlvr_debug.models.architectures import FAMILIES, why_unread
from rlvr_debug.models.places import check_config, index_of, shards, weight_files


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
    """Return what the model's folder says that it is. Raise InputError for what is no config.json of transformers."""
    config: dict[str, Any] = read_json(path / "config.json")
    check_config(config, path / "config.json")
    return config


def load_weights(file: Path) -> dict[str, Tensor]:
    """By name, in float32 whatever the file holds. Where it was cut into shards, of all of them."""
    parts = (read_tensors(part) for part in weight_files(file))
    found = {name: tensor.float() for part in parts for name, tensor in part.items()}
    if not file.exists() and (missing := shards(index_of(file.parent)).keys() - found.keys()):
        raise InputError(f"{file}: tensor '{min(missing)}' is in no shard; fetch the model again")
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


def load_model(path: Path, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return the trainable model, of transformers' class for its config.json, in `dtype`, dropout off."""
    described = model_config(path)
    family = None if why_unread(described) else FAMILIES[described["model_type"]]
    no = partial(bool, False)
    # what assisted generation and other models' losses need: two seconds of each job
    with patch.multiple("transformers.utils", is_scipy_available=no, is_sklearn_available=no):
        import transformers

        # by name where it is known: AutoModel would look through all that transformers has
        name = family.name if family else "Auto"
        kind = f"{name}ForCausalLM" if family else "AutoModelForCausalLM"
        model_class = getattr(transformers, kind)
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
            f"{file}: lm_head.weight differs from model.embed_tokens.weight, expected equal tensors "
            "with tie_word_embeddings"
        )
    # a path of this machine, which peft would write down
    model.config.name_or_path = model.name_or_path = ""
    return model.eval()


ADAPTER = "adapter"
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_DOWN, _UP, _PREFIX = ".lora_A.weight", ".lora_B.weight", "base_model.model."
# what peft may have an adapter do beside adding B A
_MORE = (
    "alpha_pattern",
    "modules_to_save",
    "rank_pattern",
    "use_dora",
    "use_rslora",
)


def is_adapter(names: Iterable[str]) -> bool:
    """Return whether these are the names of an adapter's weights, and not a model's."""
    return any(".lora_" in name for name in names)


def scaling_of(config: Mapping[str, Any], place: str | Path = _CONFIG) -> float:
    """Return alpha / r. Raise InputError, which names `place`, for an adapter that adds anything but B A."""
    kind = config.get("peft_type")
    found = {key: config[key] for key in _MORE if config.get(key)}
    if config.get("bias", "none") != "none":
        found["bias"] = config["bias"]
    if getattr(kind, "value", kind) != "LORA" or found:
        more = ", ".join(f"{key} {short(value)}" for key, value in found.items())
        raise InputError(f"{place}: found {more or short(kind)}, expected plain LoRA")
    return float(config["lora_alpha"] / config["r"])


def with_adapter(
    base: Mapping[str, Tensor],
    adapter: Mapping[str, Tensor],
    config: Mapping[str, Any],
    place: str | Path = _CONFIG,
) -> dict[str, Tensor]:
    """Return the base model's weights with those added of an adapter that peft's config, from `place`, describes, in float32."""
    scaling = scaling_of(config, place)
    whole = {name: tensor.float() for name, tensor in base.items()}
    for name, down in adapter.items():
        if name.endswith(_UP):
            continue
        up = adapter.get(name.replace(_DOWN, _UP))
        target = f"{name.removeprefix(_PREFIX).removesuffix(_DOWN)}.weight"
        if not name.endswith(_DOWN) or up is None or target not in whole:
            raise InputError(f"adapter: tensor '{name}' matches no module of the base model")
        added = up.float() @ down.float()
        if config.get("fan_in_fan_out"):  # GPT-2's layers hold their weights so
            added = added.T
        if added.shape != whole[target].shape:
            found, expected = tuple(added.shape), tuple(whole[target].shape)
            raise InputError(f"adapter: tensor '{name}' is for {found}, expected {expected}")
        whole[target] = whole[target] + added * scaling
    return whole


def adapter_of(weights: Path) -> Path | None:
    """Return the folder of the adapter that a run saved, None if it saved a whole model."""
    try:
        with safe_open(weights, framework="pt") as file:
            return weights.parent / ADAPTER if is_adapter(file.keys()) else None
    except (FileNotFoundError, SafetensorError):
        return None  # whoever reads it says what is wrong


def rank_of(adapter: Path) -> int:
    return int(read_json(adapter / _CONFIG)["r"])


def trained_weights(file: Path, base_model: Path) -> dict[str, Tensor]:
    """Return the whole weights that a run saved as its model.safetensors, float32, by the base model's names."""
    found = load_weights(file)
    if not is_adapter(found):
        return found
    config = file.parent / ADAPTER / _CONFIG
    try:
        base = load_weights(base_model / "model.safetensors")
        return with_adapter(base, found, read_json(config), config)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def link_adapter(out: Path) -> None:
    """Make the weights of the adapter in a run's folder its model.safetensors, without a second copy on the disk."""
    source = out / ADAPTER / _WEIGHTS
    with replacing(out / "model.safetensors") as temporary:
        try:
            os.link(source, temporary)
        except OSError:  # a disk without links
            shutil.copyfile(source, temporary)
