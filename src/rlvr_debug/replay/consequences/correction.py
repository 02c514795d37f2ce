"""correction: how far a sampler of its own is from the trainer, and what correcting the loss for that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlvr_debug.replay.consequences.base import Consequence, consequence
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments.importance_weights import summary

CORRECTION = "correction"
_GAP = 0.05  # nats a token
_SIZE = 0.5
_MASKED = 0.1
_LONG = 0.9
_ERRORS = 1.64  # below by more than chance in one of twenty


def correction(record: Record) -> Consequence | None:
    """Measure the weights of the loss' correction; None where there is none, or nothing that it is made of was seen."""
    found = [
        summary(batch)
        for batch in (generation.batch for generation in record.generations)
        if batch is not None
        and batch.importance_weights is not None
        and batch.old is not None
        and batch.sampler is not None
        and batch.loss_mask.any()
    ]
    if not found:
        return None
    measured = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
    measured["standard_error"] = math.hypot(*(e["standard_error"] for e in found)) / len(found)
    said = _said(measured)
    return consequence(CORRECTION, measured, not said, "; ".join(said))


def _said(measured: Mapping[str, float]) -> list[str]:
    """Return what is out of its bound, in words."""
    gap, size = measured["gap"], measured["effective_sample_size"]
    masked, long = measured["masked"], measured["weight_by_length"]
    said = []
    if gap > _GAP:
        said.append(f"sampler and trainer differ by {gap:.2g} nats a token")
    if size < _SIZE:
        said.append(
            f"the correction for the sampler leaves {size:.0%} of the effective sample size"
        )
    if masked > _MASKED:
        said.append(f"the correction for the sampler masks {masked:.0%} of its weights")
    if gap <= _GAP and long + _ERRORS * measured["standard_error"] < _LONG:
        said.append(
            f"the correction for the sampler gives longer replies {long:.2g} times the weight of shorter ones, though "
            "their tokens agree"
        )
    return said
