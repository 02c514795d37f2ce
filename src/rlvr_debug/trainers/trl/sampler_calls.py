"""Watches generation by transformers: what each call read, wrote and drew from, and the settings that it worked with."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import GenerationMixin

from rlvr_debug.replay.record import Call
from rlvr_debug.trainers.trl.settings import used_sampling

__all__ = ["in_one", "make_watchable", "watch_engine", "watch_generate"]


@dataclass
class _Watch:
    """wanted: whether a call is one of the recorded steps. ends: tokens that end a reply. note: is told of each call."""

    wanted: Callable[[], bool]
    ends: Sequence[int]
    note: Callable[[Call], None]
    used: list[Any] = field(default_factory=list)
    inside: bool = False


_watches: list[_Watch] = []


def make_watchable() -> Callable[[], None]:
    """Have the class's methods look for a watch when they are called; return what undoes it.

    Made before a script takes hold of a method, it shows calls through that one too. The class's methods are called on
    modules that wrap the model or stand for it, too.
    """
    inner = GenerationMixin.generate
    prepare = getattr(GenerationMixin, "_prepare_generation_config", None)
    if hasattr(inner, "watchable"):
        return lambda: None

    @functools.wraps(inner)
    def generate(model: Any, *given: Any, **named: Any) -> Any:
        watch = next((each for each in _watches if each.wanted() and not each.inside), None)
        if watch is None:
            return inner(model, *given, **named)
        watch.used.clear()
        watch.inside = True
        try:
            out = inner(model, *given, **_with_scores(named))
        finally:
            watch.inside = False
        watch.note(_call(out, given, named, watch))
        return out if named.get("return_dict_in_generate") else out.sequences

    def prepared(model: Any, *given: Any, **named: Any) -> Any:
        assert prepare is not None
        out = prepare(model, *given, **named)
        for watch in _watches:
            watch.used.append(out[0] if isinstance(out, tuple) else out)
        return out

    generate.watchable = True  # type: ignore[attr-defined]
    GenerationMixin.generate = generate
    if prepare is not None:
        GenerationMixin._prepare_generation_config = prepared

    def restore() -> None:
        GenerationMixin.generate = inner
        if prepare is not None:
            GenerationMixin._prepare_generation_config = prepare

    return restore


def watch_generate(
    wanted: Callable[[], bool], ends: Sequence[int], note: Callable[[Call], None]
) -> Callable[[], None]:
    """Watch generation, and return what ends that. The arguments are as in the watch."""
    restore, watch = make_watchable(), _Watch(wanted, ends, note)
    _watches.append(watch)

    def end() -> None:
        _watches.remove(watch)
        restore()

    return end


def watch_engine(
    engine: Any, calls: Callable[[], list[Call] | None], note: Callable[[Call], None]
) -> Callable[[], None]:
    """Watch an engine of the trainer's, such as vLLM's, and return what ends that.

    calls: those of the generation that is recorded, None outside of one. What the engine has from transformers is among them
    by itself; of what it samples in another way its answer is noted, without the settings that it worked with.
    """
    inner, own = engine.generate, "generate" in vars(engine)

    @functools.wraps(inner)
    def generate(*given: Any, **named: Any) -> Any:
        held = calls()
        before = len(held or ())
        out = inner(*given, **named)
        if held is not None and len(held) == before:
            note(_answered(*out[:3]))
        return out

    def restore() -> None:
        if own:
            engine.generate = inner
        else:
            del engine.generate

    engine.generate = generate
    return restore


def _answered(prompts: Any, outputs: Any, logprobs: Any) -> Call:
    """Return an engine's answer as a call. logprobs: of each token a number, or several of which the first is its own."""
    values = [
        [value[0] if isinstance(value, Sequence) else value for value in row]
        for row in logprobs or ()
    ]
    known = all(value is not None for row in values for value in row)
    return Call([*map(list, prompts)], [*map(list, outputs)], values if known else [])


def _call(out: Any, given: tuple[Any, ...], named: Mapping[str, Any], watch: _Watch) -> Call:
    ids = named.get("input_ids", named.get("inputs", given[0] if given else None))
    mask = named.get("attention_mask")
    assert ids is not None
    mask = torch.ones_like(ids) if mask is None else mask
    new = out.sequences[:, ids.shape[1] :].cpu()
    # of each prompt, where the release has it sampled several times
    times = len(new) // len(ids)
    ids, mask = ids.repeat_interleave(times, 0), mask.repeat_interleave(times, 0)
    chosen = [
        scores.float().log_softmax(-1).cpu().gather(1, new[:, place : place + 1])
        for place, scores in enumerate(out.scores)
    ]
    logprobs = torch.cat(chosen, 1) if chosen else torch.zeros(len(new), 0)
    outputs, values = [], []
    for row, each in zip(new.tolist(), logprobs.tolist(), strict=True):
        stop = next((n + 1 for n, token in enumerate(row) if token in watch.ends), len(row))
        outputs.append(row[:stop])
        values.append(each[:stop])
    prompts = [row[real.bool()].tolist() for row, real in zip(ids.cpu(), mask.cpu(), strict=True)]
    sampling = used_sampling(watch.used[0]) if watch.used else None
    if sampling is not None and named.get("logits_processor"):
        own = [f"logits_processor {type(each).__name__}" for each in named["logits_processor"]]
        sampling = replace(sampling, others=tuple(sorted({*sampling.others, *own})))
    return Call(prompts, outputs, values, sampling)


def in_one(calls: list[Call], rows: int) -> list[Call]:
    """Return the calls, of which the first ones are put together where it takes several to sample all rows once."""
    first, *later = calls or [Call([], [])]
    while later and len(first.prompts) + len(later[0].prompts) <= rows:
        more = later.pop(0)
        if (more.used, more.weights) != (first.used, first.weights):
            return calls
        first = replace(
            first,
            prompts=first.prompts + more.prompts,
            outputs=first.outputs + more.outputs,
            logprobs=first.logprobs + more.logprobs,
        )
    return [first, *later] if len(first.prompts) == rows else calls


def _with_scores(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `generate` that have it return what tokens were drawn from."""
    asked = {"return_dict_in_generate": True, "output_scores": True}
    config = named.get("generation_config")
    if config is None:
        return {**named, **asked}
    config = copy.deepcopy(config)
    config.return_dict_in_generate = config.output_scores = True
    return {**named, "generation_config": config}
