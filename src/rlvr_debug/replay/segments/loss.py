"""loss: what GRPO makes of log-probabilities and advantages, by its gradient with respect to each token.

The gradient makes any implementation comparable: it is what training sees. Axes: b rows, C tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr_debug.replay.declared import ALGORITHMS
from rlvr_debug.replay.finding import NotSeen, Place
from rlvr_debug.replay.judge import (
    SHAKES,
    Gap,
    Instance,
    Segment,
    different,
    elementwise,
    shaken_by,
    unit_of,
)
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, MicroBatch, Record, Update
from rlvr_debug.replay.segments.logprobs import places
from rlvr_debug.replay.segments.loss_formula import TYPES, Formula, expected_loss
from rlvr_debug.replay.settings import Settings
from rlvr_debug.replay.variants import knobs_of

_Factor = Literal["update", "micro-batch", "row", "place"]
_Fitted = Literal["kl_beta", "entropy_coef"]
_ADDED = "log-probabilities of other sequences have a gradient too: a term is added to the loss"
_SAME = 1e-3  # numbers by which gradients are multiplied, so near to each other, are one


def _instances(record: Record, _: Network) -> Iterator[Instance]:
    settings = record.settings
    what = record.own.declared.get("loss")
    if settings.loss_type not in TYPES and what is None:
        raise NotSeen(f"loss type {settings.loss_type} has no reference")
    if settings.adaptive_entropy and not callable(what):
        raise NotSeen("an entropy bonus that adapts has no reference")
    for number, update in enumerate(record.updates):
        if any(m.logprobs is None or m.grad_logprobs is None for m in update.micro_batches):
            raise NotSeen("the gradient by log-probability was not seen")
        if not update.micro_batches:
            continue
        if not all(micro.given.advantages.numel() for micro in update.micro_batches):
            raise NotSeen("the advantages were not seen")
        where, added = f"update {number + 1}", any(micro.others for micro in update.micro_batches)
        yield Instance(where, partial(_alone, added), _ADDED)
        whole = [_with_old(record.generations[m.generation].batch, m) for m in update.micro_batches]
        update = replace(update, micro_batches=whole)
        given = (record, update, torch.cat([_seen(micro) for micro in update.micro_batches]))
        yield Instance(where, partial(_compare, *given), partial(_described, *given))


def _with_old(whole: Batch | None, micro: MicroBatch) -> MicroBatch:
    """Return the micro-batch with the old log-probabilities of its generation, where the trainer dropped them on the way."""
    given = micro.given
    if given.old is not None or whole is None or whole.old is None:
        return micro
    rows = given.rows
    if rows is None:
        places = {_tokens(whole, row): row for row in range(len(whole.completion_ids))}
        found = [places.get(_tokens(given, row)) for row in range(len(given.completion_ids))]
        if None in found:
            return micro
        rows = torch.tensor(found)
    old = whole.old[rows][:, : given.completion_ids.shape[1]]
    return (
        replace(micro, given=replace(given, old=old))
        if old.shape == given.completion_ids.shape
        else micro
    )


def _tokens(batch: Batch, row: int) -> tuple[tuple[int, ...], ...]:
    pairs = (
        (batch.prompt_ids[row], batch.prompt_mask[row]),
        (batch.completion_ids[row], batch.completion_mask[row]),
    )
    return tuple(tuple(ids[real.bool()].tolist()) for ids, real in pairs)


def _alone(added: bool, **knobs: Any) -> Gap | None:
    return None if knobs else different(int(added))


def _compare(
    record: Record,
    update: Update,
    got: Tensor,
    *,
    factor: _Factor | None = None,
    fitted: _Fitted | None = None,
    **knobs: Any,
) -> Gap | None:
    if not _applies(record, update, knobs):
        return None
    if callable(record.own.declared.get("loss")) and (knobs or fitted):
        return None  # variants are of the formula
    if factor or fitted:
        if knobs:
            return None
        return (
            _scaled(record, update, got, factor) if factor else _linear(record, update, got, fitted)
        )
    if knobs and _far(record, update, got, knobs):
        return Gap(math.inf)
    wanted, tolerance = _with_tolerance(record, update, knobs)
    gap = elementwise(got, wanted, tolerance)
    if gap.share <= 1 or knobs:
        return gap
    return replace(gap, places=_places_off(update, (got - wanted).abs() > tolerance))


def _scaled(record: Record, update: Update, got: Tensor, factor: _Factor) -> Gap | None:
    """Return the gap to the gradient times a number that is fitted to it, one for each part; None where fewer say the same.

    factor: what the parts are: the update, a micro-batch, a row, a place in the completion.
    """
    wanted, tolerance = _with_tolerance(record, update, {})
    if not len(wanted):
        return None
    parts = _parts_of(update)
    _, of, counts = torch.unique(parts[factor], return_inverse=True, return_counts=True)
    sizes = torch.stack([_fit(got[of == n], wanted[of == n]) for n in range(len(counts))])[of]
    coarser = {"micro-batch": "update", "row": "micro-batch", "place": "update"}.get(factor)
    if coarser is not None:
        _, of, counts = torch.unique(parts[coarser], return_inverse=True, return_counts=True)
        means = torch.zeros(len(counts), dtype=sizes.dtype).index_add(0, of, sizes) / counts
        if elementwise(sizes, means[of], torch.tensor(_SAME)).share <= 1:
            return None
    return elementwise(got, sizes * wanted, tolerance * sizes.abs().clamp(min=1))


def _linear(record: Record, update: Update, got: Tensor, fitted: _Fitted | None) -> Gap | None:
    """Return the gap to the gradient with a setting that it is linear in and that is fitted to it."""
    _, tolerance = _with_tolerance(record, update, {})
    if not len(tolerance):
        return None
    zero, one = (gradients(record, update, {str(fitted): value}) for value in (0.0, 1.0))
    return elementwise(got, zero + _fit(got - zero, one - zero) * (one - zero), tolerance)


def _fit(got: Tensor, wanted: Tensor) -> Tensor:
    """Return the number that `wanted` is multiplied by, [n], to come nearest to `got`; 1 where all are 0."""
    size = wanted.square().sum()
    return (got * wanted).sum() / size if size else torch.ones_like(size)


def _applies(record: Record, update: Update, knobs: dict[str, Any]) -> bool:
    """Return whether a variant departs from what is asked for, and has what it needs."""
    settings = record.settings
    given = update.micro_batches[0].given
    needs = {"reference": given.reference, "sampler": given.sampler, "swapped": given.old}
    if knobs.get("old") in needs and needs[knobs["old"]] is None:
        return False
    if knobs.get("times") == "micro-batches" and settings.micro_batches == 1:
        return False
    if record.size == 1 and (knobs.get("times") == "processes" or "own_tokens" in knobs):
        return False
    if knobs.get("times") == "temperature" and settings.sampling.temperature == 1:
        return False
    if knobs.get("sign") == 0 and not settings.kl_beta:
        return False
    departs = (getattr(settings, name, None) != value for name, value in knobs.items())
    return any(departs) if knobs in ALGORITHMS["loss"].values() else all(departs)


def _far(record: Record, update: Update, got: Tensor, knobs: dict[str, Any]) -> bool:
    """Return whether a variant is so far off that its rounding need not be known."""
    wanted = gradients(record, update, knobs)
    near = 100 * max(unit_of([update.micro_batches[0].logprobs]), 1e-4)
    return not bool((got - wanted).abs().max() <= near * wanted.abs().max())


def _with_tolerance(record: Record, update: Update, knobs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the gradient that is right, [n], and what rounding may do to each number of it.

    Log-probabilities are shaken, and advantages: where terms cancel, each has its own rounding.
    """
    wanted, unit = gradients(record, update, knobs), unit_of([update.micro_batches[0].logprobs])
    noise = unit * wanted.abs()  # gradients are held in that type too
    for by in (1 + shake * unit for shake in SHAKES):
        others = []
        for micro in update.micro_batches:
            assert micro.logprobs is not None
            given = replace(micro.given, advantages=micro.given.advantages.double() * by)
            shaken = replace(micro, logprobs=micro.logprobs.double() * by)
            others.append((shaken, replace(micro, given=given)))
        for micros in zip(*others, strict=True):
            found = [expected_gradient(record, update, m, torch.float32, **knobs) for m in micros]
            noise = torch.maximum(noise, (torch.cat(found) - wanted).abs())
    return wanted, shaken_by(unit, noise, wanted.abs())


def gradients(record: Record, update: Update, knobs: Mapping[str, Any]) -> Tensor:
    """Return an update's gradients as expected_gradient has them, [n]."""
    return torch.cat([expected_gradient(record, update, m, **knobs) for m in update.micro_batches])


def expected_gradient(
    record: Record,
    update: Update,
    micro: MicroBatch,
    dtype: torch.dtype = torch.float64,
    **knobs: Any,
) -> Tensor:
    """Return the loss' gradient with respect to each log-probability and entropy of a micro-batch, [n], in float64."""
    assert micro.logprobs is not None
    logprobs = micro.logprobs.detach().to(dtype, copy=True).requires_grad_()
    entropies = None if micro.entropies is None else micro.entropies.to(dtype).requires_grad_()
    loss = expected_loss(record, update, micro, logprobs, entropies, knobs)
    read = [logprobs] if entropies is None else [logprobs, entropies]
    if not loss.requires_grad:
        return torch.cat([torch.zeros_like(each).flatten() for each in read]).double()
    found = torch.autograd.grad(loss, read, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(each) if grad is None else grad).double().flatten()
            for each, grad in zip(read, found, strict=True)
        ]
    )


# --- which tokens deviate, in words


def _seen(micro: MicroBatch) -> Tensor:
    """Return the recorded gradients, [n], by log-probability and, where the loss reads them, by entropy."""
    assert micro.grad_logprobs is not None
    parts = [micro.grad_logprobs.double().flatten()]
    if micro.entropies is not None:
        seen = micro.grad_entropies
        parts.append(
            (torch.zeros_like(micro.entropies) if seen is None else seen).double().flatten()
        )
    return torch.cat(parts)


def _parts_of(update: Update) -> dict[str, Tensor]:
    """Return which part each of the recorded gradients is of, [n], by what parts are."""
    found: dict[str, list[Tensor]] = {"update": [], "micro-batch": [], "row": [], "place": []}
    rows = 0
    for number, micro in enumerate(update.micro_batches):
        shape, count = micro.given.completion_ids.shape, _seen(micro).numel()
        times = count // max(shape.numel(), 1)  # entropies are behind the log-probabilities
        own = torch.arange(rows, rows + shape[0])[:, None].expand(shape).flatten()
        places = torch.arange(shape[1])[None].expand(shape).flatten()
        found["update"].append(torch.zeros(count).long())
        found["micro-batch"].append(torch.full((count,), number))
        found["row"].append(own.repeat(times))
        found["place"].append(places.repeat(times))
        rows += shape[0]
    return {name: torch.cat(parts) for name, parts in found.items()}


def _places_off(update: Update, off: Tensor) -> tuple[Place, ...]:
    """Return the tokens that are off, of an update's recorded gradients, [n]."""
    found: list[Place] = []
    start = 0
    for micro in update.micro_batches:
        size = _seen(micro).numel()
        own = off[start : start + micro.given.completion_ids.numel()]
        found += places(
            micro.generation, own.view(micro.given.completion_ids.shape), micro.given.rows
        )
        start += size
    return tuple(found)


def _described(record: Record, update: Update, got: Tensor) -> str:
    """Return which tokens deviate by what they are, and by what factor."""
    wanted, tolerance = _with_tolerance(record, update, {})
    off = (got - wanted).abs() > tolerance
    live = (wanted.abs() > tolerance) | (got.abs() > tolerance)
    kinds = _kinds(update)

    def overlap(kind: Tensor) -> float:
        union = (off | (kind & live)).sum()
        return float((off & kind).sum() / union.clamp(min=1))

    best = max(kinds, key=lambda name: overlap(kinds[name]))
    said = f"{int(off.sum())} of {int(live.sum())} tokens deviate: {best} ({overlap(kinds[best]):.0%} match)"
    ratio = (got / wanted)[off]
    ratio = ratio[ratio.isfinite()]
    if len(ratio):
        low, middle, high = (float(ratio.quantile(q)) for q in (0.05, 0.5, 0.95))
        said += f", {middle:.3g} times what it should be (median; {low:.3g} to {high:.3g})"
    return said


def _kinds(update: Update) -> dict[str, Tensor]:
    found: dict[str, list[Tensor]] = {}
    count = len(update.micro_batches)
    for place, micro in enumerate(update.micro_batches):
        given = micro.given
        mask = given.loss_mask.bool()
        advantages = given.advantages
        advantages = advantages[:, None] if advantages.dim() == 1 else advantages
        last = mask & ~(mask.flip(1).cumsum(1).flip(1) > 1)
        first = mask & ~(mask.cumsum(1) > 1)
        own = {
            "trained tokens": mask,
            "negative advantages": mask & (advantages < 0),
            "positive advantages": mask & (advantages > 0),
            "the last token of sequences": last,
            "all but the last token of sequences": mask & ~last,
            "the first token of sequences": first,
            "untrained tokens": ~mask,
            "tool tokens": given.completion_mask.bool() & ~mask,
        }
        if count > 1:
            own["the first micro-batch"] = mask & (place == 0)
            own["all micro-batches but the first"] = mask & (place > 0)
            own["the last micro-batch"] = mask & (place == count - 1)
        for name, kind in own.items():
            flat = kind.flatten()
            # entropies are behind the log-probabilities, and of no kind
            rest = torch.zeros(_seen(micro).numel() - flat.numel(), dtype=torch.bool)
            found.setdefault(name, []).append(torch.cat([flat, rest]))
    return {name: torch.cat(parts) for name, parts in found.items()}


LOSS = Segment(
    "loss",
    _instances,
    knobs_of(_compare, Formula, Settings),
    of="micro-batches",
    pairs=True,
    trains=True,
)
