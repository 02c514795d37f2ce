"""gradient, clip: what the backward passes leave, and what the optimizer reads of it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay import judge
from rlvr_debug.replay.finding import need, seen
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import MicroBatch, Record, Update
from rlvr_debug.replay.rollouts import what_is_read

Gradient = Mapping[str, Tensor]
_Pair = tuple[dict[str, Tensor], dict[str, Tensor]]
_LAYER = re.compile(r"\.(\d+)\.")
# what a gradient is multiplied by: of the number of micro-batches and of processes, and of what the clip would do
_TIMES: Mapping[str, Callable[[int, int, float], float]] = {
    "": lambda *_: 1.0,
    "micro-batches": lambda micros, *_: float(micros),
    "over micro-batches": lambda micros, *_: 1 / max(micros, 1),
    "processes": lambda _, size, __: float(size),
    "over processes": lambda _, size, __: 1 / size,
    "minus one": lambda *_: -1.0,
    "clip": lambda _, __, clip: clip,
}
_Only = Literal["", "first", "last", "first process"]
_How = Literal["", "none", "up too", "to one", "twice", "zero", "further"]
_ADDED = 1e-6  # torch adds it to the norm that it divides by
_SMALL = 1e-3  # share of the whole norm, below which a tensor's own says nothing of its rounding


def norm(gradient: Gradient) -> float:
    squares = (float(tensor.detach().double().square().sum()) for tensor in gradient.values())
    return float(sum(squares, 0.0) ** 0.5)


def product(one: Gradient, other: Gradient) -> float:
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


def gradients(record: Record, network: Network) -> Iterator[judge.Instance]:
    """gradient: what the backward passes leave is the gradient of the weights, summed over the micro-batches."""
    moe = record.settings.auxiliary_loss
    need(not moe, "a router's (MoE) loss is added, which cannot be recomputed")
    for number, update in enumerate(record.updates):
        micros = update.micro_batches
        others = any(micro.others for micro in micros)
        need(not others, "the loss has a term over other sequences, which is not recomputed")
        parts = (part for m in micros for part in (m.grad_logprobs, m.logprobs, m.forward))
        need(all(part is not None for part in parts), "what the gradient is made of was not seen")
        if not micros:
            continue
        held = update.gradients if record.weights else None
        left, names = (
            seen(held, "the weights or their gradients were not recorded"),
            looked_at(record),
        )
        both = cache(partial(_both, record, network, update))
        got = {name: tensor for name, tensor in left.items() if name in names}
        compare = partial(compare_gradient, record, update, got, both)
        yield judge.Instance(f"update {number + 1}", compare, partial(_described, got, both))
        if record.elements and norm(got):
            return  # of a large model the first update that has one says enough


def looked_at(record: Record) -> tuple[str, ...]:
    """Return the parameters whose gradients are computed again; of a large model those of its last layer, which costs little."""
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
    both = (EXACT, record.settings.precision)
    exact, rounded = (backward(record, network, micros[only], each) for each in both)
    return exact, rounded


def compare_gradient(
    record: Record,
    update: Update,
    got: Gradient,
    both: Callable[..., _Pair],
    *,
    times: Annotated[str, OneOf(_TIMES.keys)] = "",
    only: _Only = "",
    missing: bool = False,
) -> judge.Gap | None:
    size = record.size
    count = len(update.micro_batches) // size
    if (only in ("first", "last") or times.endswith("micro-batches")) and count == 1:
        return None
    if (only == "first process" or times.endswith("processes")) and size == 1:
        return None
    exact, rounded = both(only) if only else both()
    clip = min(1.0, record.settings.max_grad_norm / max(norm(exact), 1e-30))
    factor = _TIMES[times](count, size, clip)
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
        return judge.Gap(float("inf") if norm(got) else 0.0, norm(got))
    noise, off = less(shaken, wanted), less(got, wanted)
    around, share = norm(noise), norm(off) / float(judge.rounding(norm(noise), whole, precision))
    for name, tensor in off.items() if precision == "float32" else ():
        own, apart = (norm({name: x[name]} if name in x else {}) for x in (wanted, noise))
        own = max(own, _SMALL * whole)
        apart = max(apart, around * own / whole)
        share = max(share, norm({name: tensor}) / float(judge.rounding(apart, own, precision)))
    return judge.Gap(share, norm(off) / whole, fit=(product(got, wanted), whole**2))


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
        by_logprob, by_entropy = seen(micro.grad_logprobs), micro.grad_entropies
        if not by_logprob[rows].any() and (by_entropy is None or not by_entropy.any()):
            continue  # a group without contrast
        weights = held(micro.weights)
        chosen, drawn = network.chosen(
            network.plain(weights),
            what_is_read(micro).of_rows(rows),
            by_logprob.shape[1],
            record.temperature_at(micro),
            precision,
        )
        scalar = (chosen * by_logprob[rows].to(chosen.dtype)).sum()
        if by_entropy is not None:
            entropies = -(drawn.exp() * drawn).sum(-1)
            scalar = scalar + (entropies * by_entropy[rows].to(chosen.dtype)).sum()
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
    apart, most = less(got, wanted), float(judge.rounding(noise, size, "float32"))
    off = [name for name in wanted if norm({name: apart[name]}) > most]
    cosine = product(got, wanted) / max(norm(got) * size, 1e-30)
    ratio = norm(got) / max(size, 1e-30)
    return f"{len(off)} of {len(wanted)} tensors; cosine {cosine:.3f}, norm {ratio:.3g} of what it should be"


# --- clip


def clips(record: Record, _: Network) -> Iterator[judge.Instance]:
    """clip: what the optimizer reads is the gradient, scaled down to the limit of its norm where it is above."""
    for number, update in enumerate(record.updates):
        unknown = "the gradient before or after clipping was not recorded"
        gradients, clipped = seen(update.gradients, unknown), seen(update.clipped, unknown)
        need(gradients or clipped, "no gradient was recorded")
        if norm(gradients):
            # of a large model only a part of the gradient is kept
            known = update.norms or not record.elements
            need(known, "the global gradient norm was not recorded")
            norms = update.norms or (norm(gradients), norm(clipped), norm_as_summed(gradients))
            limit = record.settings.max_grad_norm
            compare = partial(compare_clip, gradients, clipped, norms, limit)
            said = f"norm {norms[0]:.3g} before, {norms[1]:.3g} after, the limit is {limit:g}"
            yield judge.Instance(f"update {number + 1}", compare, said)


def compare_clip(
    gradients: Gradient,
    clipped: Gradient,
    norms: Sequence[float],
    limit: float,
    *,
    how: _How = "",
) -> judge.Gap | None:
    """norms: of the whole gradient before and after, and the first as its own precision sums it up."""
    along, square = product(clipped, gradients), norm(gradients) ** 2
    fitted = along / max(square, 1e-30)
    before, _, *summed = norms

    def factor_of(size: float, how: _How = how) -> float:
        """Return what a gradient of this norm is multiplied by."""
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

    def off_by(size: float) -> float:
        return abs(factor_of(size) - factor) / max(factor, _ADDED)

    factor = factor_of(before)
    if how and factor == factor_of(before, ""):
        return None
    wanted, rounded = (
        {name: each * factor for name, each in tensors.items()}
        for tensors in ({n: t.double() for n, t in gradients.items()}, gradients)
    )
    size = norm(gradients) * max(factor, _ADDED)
    off, own = (norm(less(each, wanted)) / size for each in (clipped, rounded))
    unit = judge.unit_of(gradients.values())
    shaken = max(off_by(before * (1 + shake * unit)) for shake in judge.SHAKES)
    own = max([own, *map(off_by, summed)])
    tolerance = judge.shaken_by(unit, shaken, 1.0) + judge.rounding(own, 0.0, judge.OWN)
    return judge.Gap(off / float(tolerance), off, fit=(along * factor, square * factor**2))
