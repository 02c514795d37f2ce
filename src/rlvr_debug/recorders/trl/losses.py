"""Watches what a loss reads: the policy's forward passes and log-probabilities, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.recorders.keeping import kept
from rlvr_debug.recorders.trl.seams import Seams
from rlvr_debug.replay.record import Forward, MicroBatch, Update

__all__ = ["LossWatch", "Watching"]

_ASKING = "log-probabilities"
Watching = Generator[None, Any, Any]  # a hook at work


class LossWatch:
    """Fills the micro-batch whose loss is computed. Its methods with a leading underscore are hooks and parts of them."""

    def __init__(self, seams: Seams) -> None:
        self._seams = seams
        self._phase = ""
        self._update = Update()
        self._micro: MicroBatch | None = None
        self._likeness = 0  # of the log-probabilities that the micro-batch has
        self._partial = False  # a forward pass of the log-probabilities that are asked for was seen

    def _begin_micro(self, micro: MicroBatch) -> None:
        self._micro, self._likeness = micro, 0
        self._update.micro_batches.append(micro)

    @contextmanager
    def _in(self, phase: str) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def _logprobs(self, *given: Any, **named: Any) -> Watching:
        """Take note of log-probabilities of the batch that is trained on, and of others that the loss reads too."""
        micro, before = self._micro, None if self._micro is None else self._micro.forward
        self._partial = False
        with self._in(f"{self._phase} {_ASKING}"):
            out = yield
        if "loss" not in self._phase or micro is None:
            return out
        values = [
            *(out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else [out])
        ]
        likeness = self._like(micro, values[0], named.get("input_ids", (*given, None, None)[1]))
        if likeness < max(self._likeness, 1):
            micro.forward = before
            self._watch(values[0], lambda gradient: _add_other(micro, gradient))
            return out
        if likeness > self._likeness:
            micro.grad_logprobs = micro.grad_entropies = None
        self._likeness = likeness
        entropies = values[1] if len(values) > 1 else None
        if isinstance(values[0], Tensor) and values[0].requires_grad:
            micro.logprobs = kept(values[0])
            self._watch(values[0], lambda gradient: _add(micro, "grad_logprobs", gradient))
        if isinstance(entropies, Tensor):
            micro.entropies = kept(entropies)
            self._watch(entropies, lambda gradient: _add(micro, "grad_entropies", gradient))
        return out

    def _like(self, micro: MicroBatch, logprobs: Any, ids: Any) -> int:
        """Return how like the trained batch's log-probabilities are: 2 of its tokens, 1 of its shape, 0 neither."""
        wanted = micro.given.completion_ids
        if not isinstance(logprobs, Tensor) or logprobs.shape != wanted.shape:
            return 0
        same = isinstance(ids, Tensor) and torch.equal(ids[:, -wanted.shape[1] :].cpu(), wanted)
        return 2 if same else 1

    def _watch(self, values: Any, note: Callable[[Tensor], None]) -> None:
        """Have a function told of the gradient of values, if they have one."""
        if isinstance(values, Tensor) and values.requires_grad:
            values.register_hook(self._seams.guarded("gradients", note))  # type: ignore[no-untyped-call]

    def _forward(self, _: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        micro = self._micro
        if "loss" not in self._phase or micro is None or not torch.is_grad_enabled():
            return
        if micro.logprobs is None or _ASKING in self._phase:
            ids = named.get("input_ids", given[0] if given else None)
            tensors = (ids, named.get("attention_mask"), named.get("position_ids"))
            forward = Forward(*(None if t is None else kept(t) for t in tensors))  # type: ignore[arg-type]
            whole = _joined(micro.forward, forward, len(micro.given.prompt_ids))
            micro.forward = whole if self._partial and whole else forward
            self._partial = _ASKING in self._phase


def _joined(one: Forward | None, other: Forward, most: int) -> Forward | None:
    """Return two forward passes over parts of a batch of `most` rows as one; None where they are not that."""
    if one is None or len(one.input_ids) + len(other.input_ids) > most:
        return None
    pairs = [
        (getattr(one, name), getattr(other, name))
        for name in ("input_ids", "attention_mask", "position_ids")
    ]
    if any(
        (a is None) != (b is None) or (a is not None and a.shape[1:] != b.shape[1:])
        for a, b in pairs
    ):
        return None
    return Forward(*(None if a is None else torch.cat([a, b]) for a, b in pairs))  # type: ignore[arg-type]


def _add_other(micro: MicroBatch, gradient: Tensor) -> None:
    micro.others += float(gradient.detach().double().norm())


def _add(micro: MicroBatch, name: str, gradient: Tensor) -> None:
    """Keep a gradient. Two parts of a loss add up; the same pass made again is none of the loss, but of the gradient."""
    before, gradient = getattr(micro, name), kept(gradient)
    if before is None or not torch.equal(before, gradient):
        setattr(micro, name, gradient if before is None else before + gradient)
