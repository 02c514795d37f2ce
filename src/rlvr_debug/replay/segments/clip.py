"""clip: what the optimizer reads is the gradient, scaled down to the limit of its norm where it is above."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import OWN, SHAKES, Gap, Instance, rounding, shaken_by, unit_of
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments.gradient import Gradient, less, norm, norm_as_summed, product
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "clip"
_SMALL = 1e-6  # torch adds it to the norm
_How = Literal["", "none", "up too", "to one", "twice", "zero", "further"]


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
    size = norm(gradients) * max(factor, _SMALL)
    off, own = (norm(less(each, wanted)) / size for each in (clipped, rounded))
    share = off / _tolerance(partial(factor_of, how), gradients, norms, own)
    return Gap(share, off, fit=(along * factor, square * factor**2))


def _factor(how: _How, size: float, *, limit: float, fitted: float) -> float:
    """Return what a gradient of this norm is multiplied by. fitted: what the recorded one seems to be."""
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
        return abs(factor_of(size) - right) / max(right, _SMALL)

    shaken = max(off(before * (1 + shake * unit)) for shake in SHAKES)
    own = max([product, *map(off, summed)])
    return float(shaken_by(unit, shaken, 1.0) + rounding(own, 0.0, OWN))


def _described(_: Gradient, __: Gradient, norms: Sequence[float], limit: float) -> str:
    before, after = norms[:2]
    return f"norm {before:.3g} before, {after:.3g} after, the limit is {limit:g}"


KNOBS = knobs_of(_compare)
