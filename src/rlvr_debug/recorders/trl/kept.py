"""What a recorder keeps of the objects that a trainer of TRL works with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.recorders.keeping import kept
from rlvr_debug.replay.adapters import Scalings
from rlvr_debug.replay.architecture import compute_plainly
from rlvr_debug.replay.record import Batch

__all__ = [
    "ELEMENTS",
    "ROW",
    "adapters_of",
    "dropouts_of",
    "give_back",
    "kept_batch",
    "kept_row",
    "plain_module",
    "some_elements",
    "without_dropout",
]

ROW = "rlvr_debug_row"  # a column of the batch, which travels through the shuffle
ELEMENTS = 4096  # of each tensor of a large model


def adapters_of(model: Any) -> Scalings:
    """Return each module's adapters that are on, and what B A is multiplied by; 1 where nothing is."""
    found: dict[str, dict[str, float]] = {}
    for name, module in model.named_modules():
        active = getattr(module, "active_adapters", None) or ()
        if hasattr(module, "lora_A") and hasattr(module, "scaling"):
            found[name] = {each: module.scaling[each] for each in active if each in module.scaling}
        elif hasattr(module, "ia3_l"):
            found[name] = {each: 1.0 for each in active if each in module.ia3_l}
        elif hasattr(module, "original_module") and hasattr(module, "modules_to_save"):
            found[name] = {each: 1.0 for each in active if each in module.modules_to_save}
    return {name: own for name, own in found.items() if own}


def some_elements(sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Return which numbers of each tensor are looked at, drawn once, [n]; of a small tensor all."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randint(size, (ELEMENTS,), generator=generator).sort().values
        for name, size in sizes.items()
        if size > ELEMENTS
    }


def kept_batch(told: Mapping[str, Any]) -> Batch:
    """Return what TRL has of a batch."""

    def optional(name: str) -> Tensor | None:
        tensor = told.get(name)
        return kept(tensor) if isinstance(tensor, Tensor) else None

    mask = told["completion_mask"]
    counted = mask if told.get("tool_mask") is None else mask * told["tool_mask"]
    return Batch(
        prompt_ids=kept(told["prompt_ids"]),
        prompt_mask=kept(told["prompt_mask"]),
        completion_ids=kept(told["completion_ids"]),
        completion_mask=kept(mask),
        loss_mask=kept(counted).bool(),
        advantages=kept(told["advantages"]),
        old=optional("old_per_token_logps"),
        reference=optional("ref_per_token_logps"),
        sampler=optional("sampling_per_token_logps"),
        importance_weights=optional("importance_sampling_ratio"),
        rows=optional(ROW),
    )


def kept_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a row's columns; what cannot be copied is left out."""
    found = {}
    for name, value in row.items():
        try:
            found[name] = copy.deepcopy(value)
        except Exception:  # an image, a handle: not compared
            continue
    return found


def dropouts_of(model: Any) -> list[tuple[Any, str, float]]:
    """Return each dropout of a model: a module, the name of its probability, and that. Attention has one without a module."""
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float)
        and value > 0
        and ("dropout" in name or (name == "p" and isinstance(module, torch.nn.Dropout)))
    ]


def without_dropout(model: Any) -> Callable[[], None]:
    """Switch dropout off, noise that no reference could draw again; return what switches it on again."""
    found = dropouts_of(model)
    for module, name, _ in found:
        setattr(module, name, 0.0)

    def restore() -> None:
        for module, name, value in found:
            setattr(module, name, value)

    return restore


def give_back(trainer: Any) -> None:
    """Free what a trainer that makes no step any more holds in memory: weights, gradients, the optimizer's state."""
    if trainer.optimizer is not None:
        trainer.optimizer.state.clear()
    for model in filter(None, (trainer.model, getattr(trainer, "ref_model", None))):
        for parameter in model.parameters():
            parameter.grad = None
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


def plain_module(model: Any) -> Any:
    """Return a module of the model's architecture in float32, with none of what trainers patch on theirs."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = copy.deepcopy(base.config)
    compute_plainly(config, type(base))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        module = type(base)(config)
    finally:
        torch.set_default_dtype(before)
    # the token whose embedding has no gradient is the one that the model was loaded with
    unmoved = {n: m.padding_idx for n, m in _embeddings(base)}
    for name, embedding in _embeddings(module):
        embedding.padding_idx = unmoved.get(name, embedding.padding_idx)
    return module


def _embeddings(model: Any) -> Iterator[tuple[str, torch.nn.Embedding]]:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding):
            yield name.removesuffix(".original_module").removesuffix(".base_layer"), module
