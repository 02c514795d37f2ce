"""clip: what the optimizer reads is the gradient, scaled down to the limit of its norm where it is above."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import EPSILON, OWN, SHAKES, Gap, Instance, rounding, unit_of
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments.gradient import Gradient, less, norm, norm_as_summed

SEGMENT = "clip"
_SMALL = 1e-6  # torch adds it to the norm


def instances(record: Record, _: Network) -> Iterator[Instance]:
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
                f"update {number + 1}", partial(_compare, *given), partial(_described, *given)
            )


def _compare(
    gradients: Gradient,
    clipped: Gradient,
    norms: Sequence[float],
    limit: float,
    how: str = "",
) -> Gap | None:
    along = sum(
        float((clipped[n].double() * gradients[n].double()).sum())
        for n in clipped
        if n in gradients
    )
    fitted = along / max(norm(gradients) ** 2, 1e-30)

    def factor_of(size: float) -> float:
        whole = limit / (size + _SMALL) if limit else 1.0
        right = min(1.0, whole)
        return {
            "": right,
            "none": 1.0,
            "up too": whole,
            "to one": min(1.0, 1 / (size + _SMALL)),
            "twice": right**2,
            "zero": 0.0,
            "further": fitted if 0 < fitted < right else right,
        }[how]

    factor = factor_of(norms[0])
    if how and factor == min(1.0, limit / (norms[0] + _SMALL) if limit else 1.0):
        return None
    wanted = {name: tensor.double() * factor for name, tensor in gradients.items()}
    size = norm(gradients) * max(factor, _SMALL)
    rounded = {name: tensor * factor for name, tensor in gradients.items()}
    product = norm(less(rounded, wanted)) / size
    off = norm(less(clipped, wanted)) / size
    return Gap(off / _tolerance(gradients, norms, factor_of, product), off)


def _tolerance(
    gradients: Gradient,
    norms: Sequence[float],
    factor_of: Callable[[float], float],
    product: float,
) -> float:
    """Return what rounding may do to a clipped gradient, relative to it.

    The norm is shaken by a unit in the last place, and taken as its own precision sums it up. product: what the
    multiplication is rounded by.
    """
    before, _, *summed = norms
    unit, right = unit_of(gradients.values()), max(factor_of(before), _SMALL)

    def off(size: float) -> float:
        return abs(factor_of(size) - factor_of(before)) / right

    shaken = max(off(before * (1 + shake * unit)) for shake in SHAKES)
    precision = "float32" if unit == EPSILON else OWN
    own = max([product, *map(off, summed)])
    return float(rounding(shaken, 1.0, precision) + rounding(own, 0.0, OWN))


def _described(_: Gradient, __: Gradient, norms: Sequence[float], limit: float) -> str:
    before, after = norms[:2]
    return f"norm {before:.3g} before, {after:.3g} after, the limit is {limit:g}"
