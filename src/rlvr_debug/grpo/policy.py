"""The model that is trained, in full or through a LoRA adapter, and the reference it is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.models.base_model import save_weights

__all__ = ["Adapter", "Policy", "StageModule", "build_policy", "run_stage"]

_ADAPTER = "default"


@dataclass(frozen=True)
class Policy:
    """model: what log-probabilities are computed with, adapter included. adapter: peft's handle on
    it, None in full fine-tuning. reference: a model of its own, not needed with an adapter. engine:
    the model as several processes share it, else None.
    """

    model: Any
    adapter: Any
    reference: Any
    engine: Any = None

    @property
    def shared(self) -> Any:
        """What stages run on."""
        return self.model if self.engine is None else self.engine

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
                yield self.shared

    @torch.no_grad()
    def adapter_state(self) -> Adapter | None:
        if self.adapter is None:
            return None
        from peft import get_peft_model_state_dict

        weights = get_peft_model_state_dict(self.adapter, adapter_name=_ADAPTER)
        return Adapter(
            self.adapter.peft_config[_ADAPTER],
            {name: tensor.detach().clone() for name, tensor in weights.items()},
        )

    @torch.no_grad()
    def weights(self) -> dict[str, Tensor]:
        """By the base model's names, in float32, with the adapter added in; the trainer's own stay as they are."""
        weights = {
            name.replace(".base_layer.", "."): tensor.float()
            for name, tensor in self.model.state_dict().items()
            if ".lora_" not in name
        }
        if self.adapter is not None:
            for name, module in self.model.named_modules():
                if hasattr(module, "get_delta_weight"):
                    base = weights[f"{name}.weight"]
                    weights[f"{name}.weight"] = base + module.get_delta_weight(_ADAPTER)
        return weights


class StageModule(torch.nn.Module):
    """A model whose forward runs a stage on it: DDP and DeepSpeed act on calls of a module."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, stage: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
        return stage(self.model, *given, **named)


def run_stage(model: Any, stage: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
    """stage(model, ...), through the forward of whatever wraps the model."""
    if isinstance(getattr(model, "module", model), StageModule):
        result: Tensor = model(stage, *given, **named)
        return result
    return stage(model, *given, **named)


@dataclass(frozen=True)
class Adapter:
    """config: peft's; weights: by the names that peft gives them in a file."""

    config: Any
    weights: dict[str, Tensor]

    def save(self, folder: Path) -> None:
        """As peft and vLLM read it."""
        save_weights(self.weights, folder / "adapter_model.safetensors")
        self.config.save_pretrained(folder)


def build_policy(model: Any, reference: Any, settings: TrainingSettings, seed: int) -> Policy:
    """With lora_r, an adapter on every linear layer but the output layer, put into `model` itself.

    Dropout stays off: with it, the log-probabilities would be another policy's than the sampler's.
    """
    if not settings.lora_r:
        return Policy(_recomputing(model, settings), None, reference)
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
    return Policy(_recomputing(model, settings), adapter, None)


def _recomputing(model: Any, settings: TrainingSettings) -> Any:
    """transformers computes activations again in training mode only; what else that mode does, dropout,
    is 0 in every config that load_model makes."""
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    return model
