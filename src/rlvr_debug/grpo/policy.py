"""The model that is trained, in full or through a LoRA adapter, and the reference it is held to."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.models.base_model import save_weights, with_adapter

ADAPTER_NAME = "default"


@dataclass(frozen=True)
class Policy:
    """A model, its adapter (peft's handle, None in full fine-tuning) and its reference, which an adapter does without.

    engine: the model as several processes share it; sharded: each of them holds only parts of it.
    """

    model: Any
    adapter: Any
    reference: Any
    engine: Any = None
    sharded: bool = False

    @property
    def shared(self) -> Any:
        """Return what stages run on."""
        return self.model if self.engine is None else self.engine

    @property
    def trained(self) -> list[Tensor]:
        """Return the weights that the optimizer moves."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        """Yield the model before training: its copy, or itself with the adapter disabled."""
        if self.adapter is None:
            yield self.reference
        else:
            with self.adapter.disable_adapter():
                yield self.shared

    @torch.no_grad()
    def adapter_state(self) -> "Adapter | None":
        """Return a copy of the adapter, None in full fine-tuning."""
        if self.adapter is None:
            return None
        from peft import get_peft_model_state_dict

        weights = get_peft_model_state_dict(self.adapter, adapter_name=ADAPTER_NAME)
        return Adapter(
            self.adapter.peft_config[ADAPTER_NAME],
            {name: tensor.detach().clone() for name, tensor in weights.items()},
        )

    @torch.no_grad()
    def weights(self) -> dict[str, Tensor]:
        """Return all weights in float32, by the base model's names, with the adapter added in."""
        weights = {
            name.replace(".base_layer.", "."): tensor.float()
            for name, tensor in self.model.state_dict().items()
            if ".lora_" not in name
        }
        if self.adapter is not None:
            for name, module in self.model.named_modules():
                if hasattr(module, "get_delta_weight"):
                    base = weights[f"{name}.weight"]
                    weights[f"{name}.weight"] = base + module.get_delta_weight(ADAPTER_NAME)
        return weights


class StageModule(torch.nn.Module):
    """A model whose forward runs a stage on it: DDP and DeepSpeed act on calls of a module."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, stage: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
        return stage(self.model, *given, **named)


def run_stage(model: Any, stage: Callable[..., Tensor], *given: Any, **named: Any) -> Tensor:
    """Return stage(model, ...), run through the forward of whatever wraps the model."""
    if isinstance(getattr(model, "module", model), StageModule):
        result: Tensor = model(stage, *given, **named)
        return result
    return stage(model, *given, **named)


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: peft's config, and weights by the names that peft gives them in a file."""

    config: Any
    weights: dict[str, Tensor]

    def on(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the base model's weights, in float32, with the adapter added in."""
        return with_adapter(base, self.weights, self.config.to_dict())

    def save(self, folder: Path) -> None:
        """Write the files that peft and vLLM read."""
        save_weights(self.weights, folder / "adapter_model.safetensors")
        self.config.save_pretrained(folder)


def lora_config(settings: TrainingSettings) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def build_policy(model: Any, reference: Any, settings: TrainingSettings, seed: int) -> Policy:
    """Return the policy, with lora_r an adapter on each linear layer of `model` but the output layer, and no dropout."""
    adapter = None
    if settings.lora_r:
        try:
            from peft import get_peft_model
        except ModuleNotFoundError:
            raise InputError(
                f"training.lora_r is {settings.lora_r}, but peft is not installed: pip install peft"
            ) from None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            adapter = get_peft_model(model, lora_config(settings), ADAPTER_NAME).eval()
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()  # in which there is no dropout to turn on
    return Policy(model, adapter, reference if adapter is None else None)
