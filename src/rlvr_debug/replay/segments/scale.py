"""Numbers that a trainer's loss is multiplied by: for the backward pass and out of the gradients again, or by the accumulation."""

import math
from dataclasses import replace

from rlvr_debug.replay.record import MicroBatch, Record, Update
from rlvr_debug.replay.segments.gradient import less, norm, product
from rlvr_debug.replay.segments.loss import factor_of

_NEAR = 1e-3


def without_scale(record: Record) -> Record:
    """Return the record as if losses had not been scaled. Where that is wrong, and not the loss' own, gradients stay as they are."""
    record = _without_both(record)
    return replace(record, updates=[_unscaled(record, update) for update in record.updates])


def _without_both(record: Record) -> Record:
    """Return the record without a scale that the gradient which the optimizer reads shows to be taken out again.

    A gradient that is clipped whether or not the number is taken out shows nothing: another update has to.
    """
    clips = [_is_clipped(record, update) for update in record.updates]
    # most records show nothing, and their losses are computed again once, as a segment
    if record.elements or all(
        clip and _close(update.rescaled, 1)
        for clip, update in zip(clips, record.updates, strict=True)
    ):
        return record
    scales = [_scale_of(record, update) for update in record.updates]
    found = [*zip(record.updates, scales, clips, strict=True)]
    if not any(s != 1 and (_close(u.rescaled * s, 1) or not clip) for u, s, clip in found):
        return record
    updates = [_divided(update, scale) for update, scale, _ in found]
    return replace(record, updates=updates)


def _unscaled(record: Record, update: Update) -> Update:
    """Return the update with its losses' gradients as the trainer's loss has them, where transformers wrongly divides it again."""
    share, micros = 1 / record.settings.micro_batches, update.micro_batches
    again = share != 1 and not record.elements and all(_close(m.rescaled, share) for m in micros)
    if not again or not _close(factor_of(record, update) or 1.0, share):
        return update
    return replace(update, micro_batches=[_micro(micro, share) for micro in micros])


def _is_clipped(record: Record, update: Update) -> bool:
    """Return whether the clip's limit accounts for what the optimizer reads, so far as it is the gradient times a number."""
    made, size = _made(update)
    return not size or _close(made, min(1.0, _limit(record) / size))


def _scale_of(record: Record, update: Update) -> float:
    """Return what the loss is multiplied by, where the gradient may have been divided by it before the clip or after it; else 1."""
    made, size = _made(update)
    scale = factor_of(record, update) if size else None
    if scale is None or scale <= 0:
        return 1.0
    ways = [min(1.0, _limit(record) * by / size) / scale for by in (scale, 1.0)]
    return scale if any(_close(made, each) for each in ways) else 1.0


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_NEAR)


def _limit(record: Record) -> float:
    return record.settings.max_grad_norm or math.inf


def _made(update: Update) -> tuple[float, float]:
    """Return what the gradient was multiplied by before the optimizer read it, and its norm; 1 and 0 where that is no number."""
    gradients, clipped = update.gradients or {}, update.clipped or {}
    size = norm(gradients)
    made = product(clipped, gradients) / size**2 if size else 0.0
    off = less(clipped, {name: each * made for name, each in gradients.items()})
    return (made, size) if made and norm(off) <= _NEAR * norm(clipped) else (1.0, 0.0)


def _divided(update: Update, scale: float) -> Update:
    if scale == 1:
        return update
    gradients = {name: each / scale for name, each in (update.gradients or {}).items()}
    micros = [_micro(micro, scale) for micro in update.micro_batches]
    return replace(update, gradients=gradients, micro_batches=micros)


def _micro(micro: MicroBatch, scale: float) -> MicroBatch:
    parts = {name: getattr(micro, name) for name in ("grad_logprobs", "grad_entropies")}
    return replace(micro, **{n: each / scale for n, each in parts.items() if each is not None})
