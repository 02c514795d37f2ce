"""What record.json must say beside something else that it says: nothing is judged by a default that nobody chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rlvr_debug.errors import InputError

__all__ = ["TOKENS", "check_needed"]

TOKENS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "loss_mask")
Told = Mapping[str, Any]


def check_needed(told: Told) -> None:
    """Raise InputError, without the file, for the first key that is missing."""
    _check_settings(told)
    if told.get("weights") and "trainable" not in told:
        raise InputError("key 'trainable' is missing, expected beside weights")
    for place, batch, whole in _batches(told):
        if whole or any(name in batch for name in TOKENS):
            _check_keys(place, batch, TOKENS, "with the tokens")
    if told.get("weights"):
        for place, part, names in _numbered(told):
            _check_keys(place, part, names, "the number of weights")


def _check_keys(place: str, part: Told, names: tuple[str, ...], why: str) -> None:
    missing = next((name for name in names if name not in part), None)
    if missing is not None:
        raise InputError(f"key '{place}.{missing}' is missing, expected {why}")


def _check_settings(told: Told) -> None:
    generations, updates = told.get("generations", ()), told.get("updates", ())
    micros = [micro for _, micro in _micro_batches(told)]
    served = Counter(
        generation
        for update in updates
        for generation in {micro["generation"] for micro in update.get("micro_batches", ())}
    )
    scheduled = told["settings"].get("schedule", "").startswith("constant")
    needed = (
        (told.get("weights"), ("precision",), "weights"),
        (any("rewards" in each for each in generations), ("scale_rewards",), "rewards"),
        (any(each.get("calls") for each in generations), ("eos_ids", "pad_id"), "calls"),
        (
            any(len(each.get("micro_batches", ())) > 1 for each in updates),
            ("micro_batches", "steps_per_generation"),
            "several micro-batches",
        ),
        (
            any(count > 1 for count in served.values()),
            ("num_iterations", "steps_per_generation"),
            "several updates of one generation",
        ),
        (any("old" in each["given"] for each in micros), ("clip", "epsilon_high"), "old"),
        (any("reference" in each["given"] for each in micros), ("kl_beta",), "reference"),
        (any("grad_logprobs" in each for each in micros), ("loss_type",), "grad_logprobs"),
        (any("clipped" in each for each in updates), ("max_grad_norm",), "clipped"),
        (
            any(each.get("optimizer") for each in updates),
            ("learning_rate", "weight_decay", "schedule", *(() if scheduled else ("total_steps",))),
            "optimizer",
        ),
    )
    for there, names, what in needed:
        if there:
            _check_keys("settings", told["settings"], names, f"beside {what}")


def _batches(told: Told) -> Iterator[tuple[str, Told, bool]]:
    """Yield each batch with its place, and whether it must have tokens."""
    for number, generation in enumerate(told.get("generations", ())):
        if "batch" in generation:
            yield f"generations.{number}.batch", generation["batch"], False
    for place, micro in _micro_batches(told):
        yield f"{place}.given", micro["given"], True


def _micro_batches(told: Told) -> Iterator[tuple[str, Told]]:
    for number, update in enumerate(told.get("updates", ())):
        for each, micro in enumerate(update.get("micro_batches", ())):
            yield f"updates.{number}.micro_batches.{each}", micro


def _numbered(told: Told) -> Iterator[tuple[str, Told, tuple[str, ...]]]:
    """Yield what says which weights it is of, with its place and the names of these numbers."""
    for number, generation in enumerate(told.get("generations", ())):
        yield f"generations.{number}", generation, ("weights",)
        for each, call in enumerate(generation.get("calls", ())):
            yield f"generations.{number}.calls.{each}", call, ("weights",)
    for number, update in enumerate(told.get("updates", ())):
        yield f"updates.{number}", update, ("before", "after")
    for place, micro in _micro_batches(told):
        yield place, micro, ("weights",)
