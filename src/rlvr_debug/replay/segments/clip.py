"""clip: what the optimizer reads is the gradient, scaled down to the limit of its norm where it is above."""

from __future__ import annotations

from collections.abc import Iterator

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import EPSILON, Gap, Instance
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record, Update
from rlvr_debug.replay.segments.gradient import less, norm

SEGMENT = "clip"
_SMALL = 1e-6  # torch adds it to the norm
_SUMMED = 100  # units in the last place of a norm that float32 sums over many tensors
_COARSE = {"bfloat16": 2**-7}


def instances(record: Record, _: Network) -> Iterator[Instance]:
    tolerance = _COARSE.get(record.settings.precision, _SUMMED * EPSILON)
    limit = record.settings.max_grad_norm
    for number, update in enumerate(record.updates):
        size = norm(update.gradients)
        if not update.gradients and not update.clipped:
            raise NotSeen("no gradient was seen")
        if not size:
            continue

        def compare(update: Update = update, size: float = size, how: str = "") -> Gap | None:
            whole = limit / (size + _SMALL) if limit else 1.0
            factor = {
                "": min(1.0, whole),
                "none": 1.0,
                "up too": whole,
                "to one": min(1.0, 1 / (size + _SMALL)),
                "twice": min(1.0, whole) ** 2,
                "zero": 0.0,
            }[how]
            if how and factor == min(1.0, whole):
                return None
            wanted = {name: tensor.double() * factor for name, tensor in update.gradients.items()}
            off = norm(less(update.clipped, wanted)) / max(size * max(factor, _SMALL), 1e-30)
            return Gap(off / tolerance, off)

        def describe(update: Update = update, size: float = size) -> str:
            return (
                f"norm {size:.3g} before, {norm(update.clipped):.3g} after, the limit is {limit:g}"
            )

        yield Instance(f"update {number + 1}", compare, describe)
