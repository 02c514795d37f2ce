"""Whose code lies in a segment: methods that are not TRL's own, functions that a trainer was given, and callbacks."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_SAMPLED = ("prompt", "sampling settings", "sampler", "tool turns", "tokens", "loss mask")
_FIXED = ("old log-probabilities", "reference log-probabilities")
_LOSS = ("model inputs", "policy log-probabilities", "loss")
_METHODS: Mapping[str, tuple[str, ...]] = {
    "_compute_loss": _LOSS,
    "compute_loss": _LOSS,
    "_get_per_token_logps_and_entropies": (*_FIXED, *_LOSS[:2]),
    "_get_per_token_logps": (*_FIXED, *_LOSS[:2]),
    "_calculate_rewards": ("rewards",),
    "_generate_single_turn": _SAMPLED,
    "_generate": _SAMPLED,
    "_tool_call_loop": _SAMPLED,
    "rollout_func": _SAMPLED,
    "_generate_and_score_completions": (
        *_SAMPLED,
        "rewards",
        "advantages",
        *_FIXED,
        "importance weights",
    ),
    "_prepare_inputs": ("groups", "micro-batches", "advantages"),
    "_get_train_sampler": ("groups",),
    "get_train_dataloader": ("groups",),
    "training_step": ("micro-batches", "gradient", "clip", "weights between steps"),
    "create_optimizer": ("optimizer step",),
    "create_scheduler": ("optimizer step",),
    "save_model": ("saved weights",),
}
_EVENTS: Mapping[str, tuple[str, ...]] = {
    "on_pre_optimizer_step": ("gradient", "clip", "optimizer step"),
    "on_optimizer_step": ("optimizer step", "weights between steps"),
    **dict.fromkeys(
        ("on_step_begin", "on_substep_end", "on_step_end", "on_log"), ("weights between steps",)
    ),
}


def overrides_of(trainer: Any, library: str) -> dict[str, str]:
    """Return by segment, in words, which code in it is not that of TRL's GRPOTrainer, of transformers and of the library.

    Where a setting of sampling contradicts the arguments, that is said of what reads the arguments.
    """
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    libraries = ("accelerate", "transformers", "rlvr_debug", *({library} - {"trl"}))
    folders = (os.path.dirname(str(import_module(name).__file__)) for name in libraries)
    own = (str(inspect.getsourcefile(GRPOTrainer)), *folders)
    found: dict[str, list[str]] = {}
    for name, segments in _METHODS.items():
        does = "is called for rollouts" if name == "rollout_func" else f"overrides `{name}`"
        _add(found, _said(getattr(trainer, name, None), does, own), segments)
    for callback in trainer.callback_handler.callbacks:
        for name, segments in _EVENTS.items():
            if getattr(type(callback), name) is not getattr(TrainerCallback, name):
                _add(found, _said(getattr(callback, name), f"has `{name}`", own), segments)
    drawn = (getattr(trainer.args, "generation_kwargs", None) or {}).get("temperature")
    if drawn not in (None, trainer.args.temperature):
        said = f"`generation_kwargs` set `temperature` to {drawn}, which rollouts are drawn with, and the arguments to"
        said += f" {trainer.args.temperature}, which the loss divides by"
        _add(found, said, (*_FIXED, "policy log-probabilities"))
    return {segment: " and ".join(dict.fromkeys(said)) for segment, said in found.items()}


def _add(found: dict[str, list[str]], said: str, segments: tuple[str, ...]) -> None:
    for segment in segments if said else ():
        found.setdefault(segment, []).append(said)


def _said(method: Any, does: str, own: tuple[str, ...]) -> str:
    """Return whose method it is and where; "" of a library's own."""
    function = inspect.unwrap(getattr(method, "__func__", method) or str)
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith(own):
        return ""
    kind, _, _ = function.__qualname__.rpartition(".")
    whose = f"`{kind}`" if kind and not kind.endswith("<locals>") else f"`{function.__name__}`"
    return f"your {whose} {does} ({Path(code.co_filename).name}:{code.co_firstlineno})"
