"""LoRA adapters in peft's format, all that a run with one saves, and the weights of a base model with one: W + (alpha / r) B A."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlvr_debug.errors import InputError, short
from rlvr_debug.files import read_json, replacing
from rlvr_debug.models.base_model import load_weights

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
        raise InputError(f"{place}: found {more or short(kind)}, expected LoRA alone")
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
            raise InputError(f"adapter: tensor '{name}' has no place in the base model")
        added = up.float() @ down.float()
        if config.get("fan_in_fan_out"):  # GPT-2's layers hold their weights so
            added = added.T
        if added.shape != whole[target].shape:
            found, expected = tuple(added.shape), tuple(whole[target].shape)
            raise InputError(f"adapter: tensor '{name}' is for {found}, expected {expected}")
        whole[target] = whole[target] + added * scaling
    return whole


def adapter_of(weights: Path) -> Path | None:
    """Return the folder of the adapter that a run saved, None where these are a whole model's weights."""
    try:
        with safe_open(weights, framework="pt") as file:
            return weights.parent / ADAPTER if is_adapter(file.keys()) else None
    except (FileNotFoundError, SafetensorError):
        return None  # whoever reads it says what is wrong


def adds_alone(adapter: Path) -> bool:
    """Return whether there is an adapter in this folder that adds B A to linear layers, and does nothing else."""
    if not (adapter / _WEIGHTS).is_file():
        return False
    try:
        scaling_of(read_json(adapter / _CONFIG))
    except InputError:
        return False
    with safe_open(adapter / _WEIGHTS, framework="pt") as file:
        return all(name.endswith((_DOWN, _UP)) for name in file.keys())  # noqa: SIM118


def rank_of(adapter: Path) -> int:
    """Return the rank of an adapter's matrices."""
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
