"""weights between steps, saved weights: where the policy's weights change, and what is kept of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import starmap
from typing import Literal

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import OWN, Gap, Instance, Segment, different, rounding
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record, Weights
from rlvr_debug.replay.variants import knobs_of


def _between(record: Record, _: Network) -> Iterator[Instance]:
    """weights between steps: they change in the optimizer's step, and nowhere else."""
    if not record.weights:
        raise NotSeen("the policy's weights were not seen")
    held, before = record.weights, 0
    for number, update in enumerate(record.updates):
        numbers = [micro.weights for micro in update.micro_batches] or [update.before]
        first, written = numbers[0], numbers[0] != before
        found = {
            "they were written outside of the optimizer": written,
            "they change between two micro-batches of one update": len(set(numbers)) > 1,
            "they change between the last backward pass and the optimizer's step": update.touched
            or numbers[-1] != update.before,
        }
        wrong = [text for text, is_so in found.items() if is_so]
        begun = (torch.equal(held[first][name], held[0][name]) for name in record.trainable)
        rounded = (
            torch.equal(w, held[before][n].bfloat16().to(w.dtype)) for n, w in held[first].items()
        )
        ways = {"bfloat16": all(rounded), "beginning": written and all(begun)}
        where = f"after update {number}" if number and written else f"update {number + 1}"
        yield Instance(where, partial(_compare_between, len(wrong), ways), "; ".join(wrong))
        before = update.after


def _compare_between(
    count: int, ways: Mapping[str, bool], *, how: Literal["", "bfloat16", "beginning"] = ""
) -> Gap:
    return different(not ways[how] if how else count)


BETWEEN = Segment(
    "weights between steps", _between, knobs_of(_compare_between), of="updates", trains=True
)


def _saved(record: Record, network: Network) -> Iterator[Instance]:
    """saved weights: what the trainer saves is the policy that it trained."""
    if record.saved is None:
        raise NotSeen("nothing was saved")
    given = (record, network, record.saved)
    yield Instance("the end", partial(_compare_saved, *given), partial(_described, *given))


def _compare_saved(
    record: Record,
    network: Network,
    saved: Weights,
    *,
    first: bool = False,
    reference: bool = False,
    some: bool = False,
    stored: Literal["", "bfloat16", "float16", "float8_e4m3fn"] = "",
) -> Gap | None:
    """some: whether some tensors are of the beginning. stored: the type that tensors were rounded to."""
    held: Weights
    last = len(record.weights) - 1
    if some or stored:
        held = network.policy(last)
        off = [name for name in held if name in saved and not torch.equal(saved[name], held[name])]
        if last < 1 or not off:
            return None
        kind = getattr(torch, stored, None)
        other = {n: t.to(kind).to(t.dtype) for n, t in held.items()} if kind else network.policy(0)
        return different(sum(not torch.equal(saved[n].to(other[n].dtype), other[n]) for n in off))
    if (first and last < 1) or (reference and record.reference is None):
        return None
    if reference:
        assert record.reference is not None
        held = exact = record.reference
    else:
        held, exact = network.both(0 if first else last)
    return Gap(math.inf, math.inf) if _missing(held, saved) else weights_gap(saved, held, exact)


def weights_gap(got: Weights, held: Weights, exact: Weights) -> Gap:
    """Compare the weights that both have.

    held: as the run's own precision merges an adapter; exact: the same in float64. What `got` is stored in rounds them too.
    """

    def squares(name: str, tensor: Tensor) -> Tensor:
        right, own = exact[name].double(), got[name].double()
        rounded = tensor.to(got[name].dtype).double()
        parts = (own - right, rounded - right, right)
        return torch.stack([part.square().sum() for part in parts])

    both = ((name, tensor) for name, tensor in held.items() if name in got)
    off, noise, size = sum(starmap(squares, both), torch.zeros(3).double()).sqrt().tolist()
    return Gap(off / max(float(rounding(noise, size, OWN)), 1e-30), off / max(size, 1e-30))


def _missing(held: Weights, saved: Weights) -> list[str]:
    """Return the weights that are saved neither under their name nor, as tied ones are, under another."""

    def tied(own: Tensor) -> bool:
        return any(
            own.shape == t.shape and torch.equal(t.to(own.dtype), own) for t in saved.values()
        )

    return [name for name in held if name not in saved and not tied(held[name])]


def _described(record: Record, network: Network, saved: Weights) -> str:
    held = network.policy(len(record.weights) - 1)
    missing = _missing(held, saved)
    return f"{len(missing)} of {len(held)} tensors are missing" if missing else ""


SAVED = Segment("saved weights", _saved, knobs_of(_compare_saved), trains=True)
