"""clip: what the optimizer reads is the gradient, scaled down to the limit of its norm where it is above."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import EPSILON, Gap, Instance
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments.gradient import Gradient, less, norm, norm_as_summed

SEGMENT = "clip"
_SMALL = 1e-6  # torch adds it to the norm
_TIMES = 4.0  # by as many times the rounding of a norm, measured in its own precision
_SUMMED = 100  # units in the last place of a norm that float32 sums over many tensors
# the norm of each tensor, the norm of these, the factor and its product are rounded by up to half a unit
_COARSE = {"bfloat16": 4 * torch.finfo(torch.bfloat16).eps / 2}


def instances(record: Record, _: Network) -> Iterator[Instance]:
    tolerance = _COARSE.get(record.settings.precision, _SUMMED * EPSILON)
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
            compare = partial(_compare, *given, tolerance + _TIMES * _rounding(*norms))
            yield Instance(f"update {number + 1}", compare, partial(_described, *given))


def _rounding(before: float, _: float, summed: float | None = None) -> float:
    """Return how far the norm before the clip is off where its own precision sums it up, relative to it."""
    return 0.0 if summed is None else abs(summed - before) / max(before, 1e-30)


def _compare(
    gradients: Gradient,
    clipped: Gradient,
    norms: Sequence[float],
    limit: float,
    tolerance: float,
    how: str = "",
) -> Gap | None:
    size = norms[0]
    whole = limit / (size + _SMALL) if limit else 1.0
    right = min(1.0, whole)
    along = sum(
        float((clipped[n].double() * gradients[n].double()).sum())
        for n in clipped
        if n in gradients
    )
    fitted = along / max(norm(gradients) ** 2, 1e-30)
    factor = {
        "": right,
        "none": 1.0,
        "up too": whole,
        "to one": min(1.0, 1 / (size + _SMALL)),
        "twice": right**2,
        "zero": 0.0,
        "further": fitted if 0 < fitted < right else right,
    }[how]
    if how and factor == right:
        return None
    wanted = {name: tensor.double() * factor for name, tensor in gradients.items()}
    off = norm(less(clipped, wanted)) / (norm(gradients) * max(factor, _SMALL))
    return Gap(off / tolerance, off)


def _described(_: Gradient, __: Gradient, norms: Sequence[float], limit: float) -> str:
    before, after = norms[:2]
    return f"norm {before:.3g} before, {after:.3g} after, the limit is {limit:g}"
