"""The model that is trained, in full or through a LoRA adapter, and the reference it is held to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.settings import TrainingSettings

__all__ = ["Policy", "build_policy"]

_ADAPTER = "default"


@dataclass(frozen=True)
class Policy:
    """model: what log-probabilities are computed with, adapter included. adapter: peft's handle on
    it, None in full fine-tuning. reference: a model of its own, not needed with an adapter.
    """

    model: Any
    adapter: Any
    reference: Any

    @property
    def trained(self) -> list[Tensor]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        """The model before training: its copy, or itself with the adapter disabled."""
        if self.adapter is None:
            yield self.reference
        else:
            with self.adapter.disable_adapter():
                yield self.model

    @torch.no_grad()
    def weights(self) -> dict[str, Tensor]:
        """By the base model's names, with the adapter added in; the trainer's own stay as they are."""
        weights = {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in self.model.state_dict().items()
            if ".lora_" not in name
        }
        if self.adapter is not None:
            for name, module in self.model.named_modules():
                if hasattr(module, "get_delta_weight"):
                    base = weights[f"{name}.weight"]
                    weights[f"{name}.weight"] = base + module.get_delta_weight(_ADAPTER)
        return weights


def build_policy(model: Any, reference: Any, settings: TrainingSettings, seed: int) -> Policy:
    """With lora_r, an adapter on every linear layer but the output layer, put into `model` itself.

    Dropout stays off: with it, the log-probabilities would be another policy's than the sampler's.
    """
    if not settings.lora_r:
        return Policy(model, None, reference)
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError:
        raise InputError(
            f"training.lora_r is {settings.lora_r}, which needs peft, and it is not installed"
        ) from None
    config = LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapter = get_peft_model(model, config, adapter_name=_ADAPTER).eval()
    return Policy(model, adapter, None)
