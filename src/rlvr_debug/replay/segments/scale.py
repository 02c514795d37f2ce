"""A loss scale: the number that losses are multiplied by for the backward pass, and that is taken out of the gradients again."""

import math
from dataclasses import replace

from rlvr_debug.replay.record import MicroBatch, Record, Update
from rlvr_debug.replay.segments.gradient import less, norm, product
from rlvr_debug.replay.segments.loss import factor_of

_NEAR = 1e-3


def without_scale(record: Record) -> Record:
    """Return the record as if losses had not been scaled, where the gradient that the optimizer reads shows that they were.

    A gradient that is clipped whether or not the number is taken out shows nothing: another update has to.
    """
    found = [_scale_of(record, update) for update in record.updates]
    if not any(shown for _, shown in found):
        return record
    updates = [_divided(u, scale) for u, (scale, _) in zip(record.updates, found, strict=True)]
    return replace(record, updates=updates)


def _scale_of(record: Record, update: Update) -> tuple[float, bool]:
    """Return what the loss is multiplied by, where the gradient may have been divided by it before the clip or after it, and whether it was."""
    gradients, clipped = update.gradients, update.clipped
    if record.elements or not gradients or not clipped or not norm(gradients) or not norm(clipped):
        return 1.0, False
    scale = factor_of(record, update)
    if scale is None or scale <= 0 or math.isclose(scale, 1, rel_tol=_NEAR):
        return 1.0, False
    size, limit = norm(gradients), record.settings.max_grad_norm or math.inf
    made = product(clipped, gradients) / size**2
    apart = norm(less(clipped, {name: each * made for name, each in gradients.items()}))
    before, after = (min(1.0, limit * by / size) / scale for by in (scale, 1.0))
    taken = [math.isclose(made, each, rel_tol=_NEAR) for each in (before, after)]
    if not any(taken) or apart > _NEAR * norm(clipped):
        return 1.0, False
    seen = math.isclose(update.rescaled * scale, 1, rel_tol=_NEAR)
    return scale, seen or not math.isclose(made, min(1.0, limit / size), rel_tol=_NEAR)


def _divided(update: Update, scale: float) -> Update:
    if scale == 1:
        return update
    gradients = {name: each / scale for name, each in (update.gradients or {}).items()}
    micros = [_micro(micro, scale) for micro in update.micro_batches]
    return replace(update, gradients=gradients, micro_batches=micros)


def _micro(micro: MicroBatch, scale: float) -> MicroBatch:
    parts = {name: getattr(micro, name) for name in ("grad_logprobs", "grad_entropies")}
    return replace(micro, **{n: each / scale for n, each in parts.items() if each is not None})
