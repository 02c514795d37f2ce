"""gradient, clip: what the backward passes leave, and what the optimizer reads of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import (
    OWN,
    SHAKES,
    Gap,
    Instance,
    Segment,
    rounding,
    shaken_by,
    unit_of,
)
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import MicroBatch, Record, Update
from rlvr_debug.replay.variants import knobs_of

Gradient = Mapping[str, Tensor]
_Pair = tuple[dict[str, Tensor], dict[str, Tensor]]
_LAYER = re.compile(r"\.(\d+)\.")
_Times = Literal[
    "",
    "micro-batches",
    "over micro-batches",
    "processes",
    "over processes",
    "minus one",
    "clip",
]
_Only = Literal["", "first", "last", "first process"]
_How = Literal["", "none", "up too", "to one", "twice", "zero", "further"]
_ADDED = 1e-6  # torch adds it to the norm that it divides by
_SMALL = 1e-3  # share of the whole norm, below which a tensor's own says nothing of its rounding


def norm(gradient: Gradient) -> float:
    """Return the norm of all tensors together."""
    squares = (float(tensor.detach().double().square().sum()) for tensor in gradient.values())
    return float(sum(squares, 0.0) ** 0.5)


def product(one: Gradient, other: Gradient) -> float:
    """Return the sum of the products of all numbers that both have."""
    both = one.keys() & other.keys()
    return sum(float((one[n].double() * other[n].double()).sum()) for n in sorted(both))


def norm_as_summed(gradient: Gradient) -> float:
    """Return the same norm as the gradient's own precision sums it up: in float32, of 100 M numbers, it is off by 1e-2."""
    found = [torch.linalg.vector_norm(tensor.detach()) for tensor in gradient.values()]
    return float(torch.linalg.vector_norm(torch.stack(found))) if found else 0.0


def less(one: Gradient, other: Gradient) -> dict[str, Tensor]:
    """Return the difference by name; what is missing on one side is 0."""
    zero = torch.zeros(())
    return {
        name: one.get(name, zero).double() - other.get(name, zero).double()
        for name in one.keys() | other.keys()
    }


def _gradient(record: Record, network: Network) -> Iterator[Instance]:
    """gradient: what the backward passes leave is the gradient of the weights, summed over the micro-batches."""
    if record.settings.auxiliary_loss:
        raise NotSeen("a loss of the router, which has no reference, is added")
    for number, update in enumerate(record.updates):
        parts = [(m.grad_logprobs, m.logprobs, m.forward) for m in update.micro_batches]
        if any(micro.others for micro in update.micro_batches):
            raise NotSeen("the loss has a term of other sequences, which is not computed again")
        if any(part is None for each in parts for part in each):
            raise NotSeen("what the gradient is made of was not seen")
        if not update.micro_batches:
            continue
        if update.gradients is None or not record.weights:
            raise NotSeen("the gradient of the weights, or the weights, were not seen")
        both = cache(partial(_both, record, network, update))
        names = looked_at(record)
        got = {name: tensor for name, tensor in update.gradients.items() if name in names}
        compare = partial(_compare, record, update, got, both)
        yield Instance(f"update {number + 1}", compare, partial(_described, got, both))
        if record.elements and norm(got):
            return  # of a large model the first update that has one says enough


def looked_at(record: Record) -> tuple[str, ...]:
    """Return the parameters whose gradients are computed again: all of them, or of a large model those of its last layer.

    A backward pass that ends there costs little more than the forward pass.
    """
    names = [name for name in record.trainable if record.weights and name in record.weights[0]]
    layers = {name: int(found[1]) for name in names if (found := _LAYER.search(name))}
    if not record.elements or not layers:
        return tuple(record.trainable)
    last = max(layers.values())
    return tuple(name for name in names if layers.get(name, -1) == last)


def _both(record: Record, network: Network, update: Update, only: str = "") -> _Pair:
    """Return the gradient in float64 and in the run's own precision. only: of the first or last micro-batch, or process."""
    of, many = update.micro_batches, record.size
    micros = {
        "": of,
        "first": of[:many],
        "last": of[-many:],
        "first process": [micro for micro in of if not micro.process],
    }
    exact, rounded = (
        backward(record, network, micros[only], precision)
        for precision in (EXACT, record.settings.precision)
    )
    return exact, rounded


def _compare(
    record: Record,
    update: Update,
    got: Gradient,
    both: Callable[..., _Pair],
    *,
    times: _Times = "",
    only: _Only = "",
    missing: bool = False,
) -> Gap | None:
    size = record.size
    count = len(update.micro_batches) // size
    if (only in ("first", "last") or times.endswith("micro-batches")) and count == 1:
        return None
    if (only == "first process" or times.endswith("processes")) and size == 1:
        return None
    exact, rounded = both(only) if only else both()
    factors = {
        "": 1.0,
        "micro-batches": float(count),
        "over micro-batches": 1 / max(count, 1),
        "processes": float(size),
        "over processes": 1 / size,
        "minus one": -1.0,
        "clip": min(1.0, record.settings.max_grad_norm / max(norm(exact), 1e-30)),
    }
    factor = factors[times]
    if times and factor == 1:
        return None
    wanted, shaken = (
        {name: tensor * factor for name, tensor in each.items()} for each in (exact, rounded)
    )
    if missing:
        # tensors without any gradient are left out
        without = {name for name in wanted if name not in got or not got[name].any()}
        if not without or len(without) == len(wanted):
            return None
        got, wanted, shaken = (
            {name: each[name] for name in wanted if name not in without}
            for each in (got, wanted, shaken)
        )
    precision, whole = record.settings.precision, norm(wanted)
    if not whole:
        return Gap(float("inf") if norm(got) else 0.0, norm(got))
    noise, off = less(shaken, wanted), less(got, wanted)
    around, share = norm(noise), norm(off) / float(rounding(norm(noise), whole, precision))
    for name, tensor in off.items() if precision == "float32" else ():
        own, apart = (norm({name: x[name]} if name in x else {}) for x in (wanted, noise))
        own = max(own, _SMALL * whole)
        apart = max(apart, around * own / whole)
        share = max(share, norm({name: tensor}) / float(rounding(apart, own, precision)))
    return Gap(share, norm(off) / whole, fit=(product(got, wanted), whole**2))


def backward(
    record: Record, network: Network, micros: Sequence[MicroBatch], precision: str
) -> dict[str, Tensor]:
    """Return the gradient of the trainable weights, by name, that the recorded gradients by log-probability amount to."""
    total: dict[str, Tensor] = {}
    names = looked_at(record)
    dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)

    @cache
    def held(number: int) -> dict[str, Tensor]:
        cut = network.cast(record.weights[number], dtype)
        return {name: tensor.detach().requires_grad_(name in names) for name, tensor in cut.items()}

    # of a large model, few rows go through the network together
    pieces = (
        (micro, rows)
        for micro in micros
        for every in [torch.arange(len(micro.given.completion_ids))]
        for rows in torch.split(every, record.rows or max(len(every), 1))
    )
    for micro, rows in pieces if names else ():
        assert micro.forward is not None
        assert micro.logprobs is not None
        assert micro.grad_logprobs is not None
        read = (micro.grad_logprobs[rows], micro.grad_entropies)
        if not any(tensor is not None and tensor.any() for tensor in read):
            continue  # a group without contrast
        weights = held(micro.weights)
        chosen, drawn = network.chosen(
            network.plain(weights),
            micro.forward.of_rows(rows),
            micro.logprobs.shape[1],
            record.settings.sampling.temperature,
            precision,
        )
        scalar = (chosen * micro.grad_logprobs[rows].to(chosen.dtype)).sum()
        if micro.grad_entropies is not None:
            entropies = -(drawn.exp() * drawn).sum(-1)
            scalar = scalar + (entropies * micro.grad_entropies[rows].to(chosen.dtype)).sum()
        found = torch.autograd.grad(scalar, [weights[name] for name in names], allow_unused=True)
        for name, gradient in zip(names, found, strict=True):
            if gradient is not None:
                part = record.part(name, gradient)
                total[name] = total[name] + part if name in total else part
    return total


def _described(got: Gradient, both: Callable[..., _Pair]) -> str:
    wanted, rounded = both()
    size = norm(wanted)
    noise = norm(less(rounded, wanted))
    off = [
        name
        for name in wanted
        if norm(less({name: got[name]} if name in got else {}, {name: wanted[name]}))
        > float(rounding(noise, size, "float32"))
    ]
    cosine = product(got, wanted) / max(norm(got) * size, 1e-30)
    ratio = norm(got) / max(size, 1e-30)
    return f"{len(off)} of {len(wanted)} tensors; cosine {cosine:.3f}, norm {ratio:.3g} of what it should be"


GRADIENT = Segment("gradient", _gradient, knobs_of(_compare), of="micro-batches", trains=True)

# --- clip


def _clip(record: Record, _: Network) -> Iterator[Instance]:
    """clip: what the optimizer reads is the gradient, scaled down to the limit of its norm where it is above."""
    for number, update in enumerate(record.updates):
        if update.gradients is None or update.clipped is None:
            raise NotSeen("the gradient before and after the clip was not seen")
        if not update.gradients and not update.clipped:
            raise NotSeen("no gradient was seen")
        if norm(update.gradients):
            # of a large model only a part of the gradient is kept
            if record.elements and not update.norms:
                raise NotSeen("the norm of the whole gradient was not seen")
            whole = (norm(update.gradients), norm(update.clipped), norm_as_summed(update.gradients))
            norms = update.norms or whole
            given = (update.gradients, update.clipped, norms, record.settings.max_grad_norm)
            yield Instance(
                f"update {number + 1}",
                partial(_compare_clip, *given),
                partial(_described_clip, *given),
            )


def _compare_clip(
    gradients: Gradient,
    clipped: Gradient,
    norms: Sequence[float],
    limit: float,
    *,
    how: _How = "",
) -> Gap | None:
    along, square = product(clipped, gradients), norm(gradients) ** 2
    fitted = along / max(square, 1e-30)
    factor_of = partial(_factor, limit=limit, fitted=fitted)
    factor = factor_of(how, norms[0])
    if how and factor == factor_of("", norms[0]):
        return None
    wanted, rounded = (
        {name: each * factor for name, each in tensors.items()}
        for tensors in ({n: t.double() for n, t in gradients.items()}, gradients)
    )
    size = norm(gradients) * max(factor, _ADDED)
    off, own = (norm(less(each, wanted)) / size for each in (clipped, rounded))
    share = off / _tolerance(partial(factor_of, how), gradients, norms, own)
    return Gap(share, off, fit=(along * factor, square * factor**2))


def _factor(how: _How, size: float, *, limit: float, fitted: float) -> float:
    """Return what a gradient of this norm is multiplied by. fitted: what the recorded one seems to be."""
    whole = limit / (size + _ADDED) if limit else 1.0
    right = min(1.0, whole)
    return {
        "": right,
        "none": 1.0,
        "up too": whole,
        "to one": min(1.0, 1 / (size + _ADDED)),
        "twice": right**2,
        "zero": 0.0,
        "further": fitted if 0 < fitted < right else right,
    }[how]


def _tolerance(
    factor_of: Callable[[float], float],
    gradients: Gradient,
    norms: Sequence[float],
    product: float,
) -> float:
    """Return what rounding may do to a clipped gradient, relative to it.

    The norm is shaken by a unit in the last place, and taken as its own precision sums it up. product: what the
    multiplication is rounded by.
    """
    before, _, *summed = norms
    unit, right = unit_of(gradients.values()), factor_of(before)

    def off(size: float) -> float:
        return abs(factor_of(size) - right) / max(right, _ADDED)

    shaken = max(off(before * (1 + shake * unit)) for shake in SHAKES)
    own = max([product, *map(off, summed)])
    return float(shaken_by(unit, shaken, 1.0) + rounding(own, 0.0, OWN))


def _described_clip(_: Gradient, __: Gradient, norms: Sequence[float], limit: float) -> str:
    before, after = norms[:2]
    return f"norm {before:.3g} before, {after:.3g} after, the limit is {limit:g}"


CLIP = Segment("clip", _clip, knobs_of(_compare_clip), of="updates", trains=True)
