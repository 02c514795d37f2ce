"""The gradients of an update's tokens, and in words which of them deviate."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr_debug.replay.finding import Place
from rlvr_debug.replay.record import MicroBatch, Update
from rlvr_debug.replay.segments.sampler import places

__all__ = ["described", "fit", "means", "numbered", "parts_of", "places_off", "seen"]


def seen(micro: MicroBatch) -> Tensor:
    """Return the recorded gradients, [n], by log-probability and, where the loss reads them, by entropy."""
    assert micro.grad_logprobs is not None
    parts = [micro.grad_logprobs.double().flatten()]
    if micro.entropies is not None:
        seen = micro.grad_entropies
        parts.append(
            (torch.zeros_like(micro.entropies) if seen is None else seen).double().flatten()
        )
    return torch.cat(parts)


def fit(got: Tensor, wanted: Tensor) -> float:
    """Return the number that `wanted` is multiplied by, [n], to come nearest to `got`; 1 where all are 0."""
    size = float(wanted.square().sum())
    return float((got * wanted).sum()) / size if size else 1.0


def means(values: Tensor, part: Tensor) -> Tensor:
    """Return each value's mean over its part, [n]. part: numbers of parts, [n]."""
    of = numbered(part)
    total = torch.zeros(int(of.max()) + 1, dtype=values.dtype).index_add(0, of, values)
    return (total / torch.bincount(of))[of]


def numbered(part: Tensor) -> Tensor:
    """Return numbers of parts, [n], without gaps from 0 on."""
    of: Tensor = torch.unique(part, return_inverse=True)[1]
    return of


def parts_of(update: Update) -> dict[str, Tensor]:
    """Return which part each of the recorded gradients is of, [n], by what parts are."""
    found: dict[str, list[Tensor]] = {"update": [], "micro-batch": [], "row": [], "place": []}
    rows = 0
    for number, micro in enumerate(update.micro_batches):
        shape, count = micro.given.completion_ids.shape, seen(micro).numel()
        times = count // max(shape.numel(), 1)  # entropies are behind the log-probabilities
        own = torch.arange(rows, rows + shape[0])[:, None].expand(shape).flatten()
        places = torch.arange(shape[1])[None].expand(shape).flatten()
        found["update"].append(torch.zeros(count).long())
        found["micro-batch"].append(torch.full((count,), number))
        found["row"].append(own.repeat(times))
        found["place"].append(places.repeat(times))
        rows += shape[0]
    return {name: torch.cat(parts) for name, parts in found.items()}


def places_off(update: Update, off: Tensor) -> tuple[Place, ...]:
    """Return the tokens that are off, of an update's recorded gradients, [n]."""
    found: list[Place] = []
    start = 0
    for micro in update.micro_batches:
        size = seen(micro).numel()
        own = off[start : start + micro.given.completion_ids.numel()]
        found += places(
            micro.generation, own.view(micro.given.completion_ids.shape), micro.given.rows
        )
        start += size
    return tuple(found)


def described(update: Update, got: Tensor, wanted: Tensor, tolerance: Tensor) -> str:
    """Return which tokens deviate by what they are, and by what factor. All but the update are [n]."""
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
            rest = torch.zeros(seen(micro).numel() - flat.numel(), dtype=torch.bool)
            found.setdefault(name, []).append(torch.cat([flat, rest]))
    return {name: torch.cat(parts) for name, parts in found.items()}
