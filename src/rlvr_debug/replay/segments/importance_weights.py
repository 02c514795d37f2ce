"""importance weights: what corrects the loss for a sampler whose log-probabilities are not the trainer's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import AllowInfNan
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import SHAKES, Gap, Instance, Segment, elementwise, shaken_by, unit_of
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Record
from rlvr_debug.replay.rollouts import batch_of
from rlvr_debug.replay.settings import Settings
from rlvr_debug.replay.variants import knobs_of

_Mode = Literal["", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def _instances(record: Record, _: Network) -> Iterator[Instance]:
    if not record.settings.importance_correction:
        return
    for number, generation in enumerate(record.generations):
        batch = batch_of(generation)
        if batch.importance_weights is None or batch.old is None or batch.sampler is None:
            raise NotSeen("the correction's weights, or what they are made of, were not seen")
        compare, said = partial(_compare, batch, record.settings), partial(_described, batch)
        yield Instance(f"generation {number + 1}", compare, said)


def _compare(batch: Batch, settings: Settings, **knobs: Any) -> Gap:
    assert batch.importance_weights is not None
    got = batch.importance_weights.double()
    wanted = expected_weights(batch, settings, **knobs)
    # the policy's log-probabilities are shaken, all of a sequence in one direction, as their errors may sum up
    assert batch.old is not None
    unit, noise = unit_of((batch.old, batch.sampler)), torch.zeros_like(wanted)
    for shake in SHAKES:
        shaken = replace(batch, old=batch.old.double() * (1 + shake * unit))
        noise = torch.maximum(noise, (expected_weights(shaken, settings, **knobs) - wanted).abs())
    values = [each.expand_as(got) for each in (got, wanted, shaken_by(unit, noise, wanted))]
    if got.shape[1] > 1:  # what a weight does to other tokens than those that count is nothing
        values = [each[batch.loss_mask.bool()] for each in values]
    return elementwise(*values)


def _described(batch: Batch) -> str:
    told = summary(batch).items()
    return "; ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in told)


def expected_weights(
    batch: Batch,
    settings: Settings,
    *,
    mode: _Mode = "",
    swapped: bool = False,
    maximum: Annotated[float, AllowInfNan()] | None = None,
    mean: bool = False,
) -> Tensor:
    """Return the weight of each token or sequence, [B, C] or [B, 1].

    Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025); TRL's four modes:
    of tokens or sequences, cut to their bounds (truncate) or 0 outside of them (mask). mean: a sequence's ratio is the
    geometric mean over its tokens.
    """
    assert batch.old is not None
    assert batch.sampler is not None
    level, _, how = (mode or settings.importance_correction).partition("_")
    mask = batch.loss_mask.double()
    gap = (batch.old.double() - batch.sampler.double()).nan_to_num(nan=0.0) * mask
    gap = -gap if swapped else gap
    if level == "sequence":
        gap = gap.sum(1, keepdim=True)
        gap = gap / mask.sum(1, keepdim=True).clamp(min=1) if mean else gap
    ratio = gap.exp()
    least = -math.inf if settings.correction_min is None else settings.correction_min
    most = settings.correction_max if maximum is None else maximum
    most = math.inf if most is None else most
    if how == "truncate":
        return ratio.clamp(min=least, max=most)
    return ratio.masked_fill((ratio < least) | (ratio > most), 0.0)


def summary(batch: Batch) -> dict[str, float]:
    """Return what a correction does to a batch, whether it is right or not.

    gap: mean absolute difference of sampler and trainer, nats a token. effective_sample_size: of the weights,
    relative to their number (Kish). masked: share of weights that are 0. weight_by_length: mean weight of the sequences
    that are longer than the median, relative to that of the others, with its standard error; 1 where that is not known.
    """
    assert batch.importance_weights is not None
    assert batch.old is not None
    assert batch.sampler is not None
    mask = batch.loss_mask.bool()
    weights = batch.importance_weights.double()
    lengths = mask.sum(1)
    whole = weights.shape[1] == 1
    each = (
        weights[:, 0] if whole else (weights * mask).sum(1) / lengths.clamp(min=1).to(weights.dtype)
    )
    counted = each if whole else weights[mask]
    squares = counted.square().sum()
    size = counted.sum().square() / squares / len(counted) if squares else squares
    there = lengths > 0
    long = lengths > lengths[there].median()
    longer, shorter = each[long], each[there & ~long]
    known = len(longer) > 1 and len(shorter) > 1 and bool(shorter.mean())
    by_length, error = _ratio(longer, shorter) if known else (1.0, 0.0)
    return {
        "gap": float((batch.old - batch.sampler)[mask].abs().nanmean()),
        "effective_sample_size": float(size),
        "masked": float((counted == 0).double().mean()),
        "weight_by_length": by_length,
        "standard_error": error,
    }


def _ratio(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the ratio of two means and its standard error."""
    ratio = float(one.mean() / other.mean())
    errors = [float(x.std() / x.mean()) / len(x) ** 0.5 if x.any() else 0.0 for x in (one, other)]
    return ratio, ratio * math.hypot(*errors)


WEIGHTS = Segment("importance weights", _instances, knobs_of(expected_weights), of="rollouts")
