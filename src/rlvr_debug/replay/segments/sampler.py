"""sampler: its log-probabilities are those of the policy's weights of that time, in the distribution asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen, Place
from rlvr_debug.replay.judge import Gap, Instance, fitted, rounding
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import Call, Generation, Record, Weights
from rlvr_debug.replay.settings import Sampling
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "sampler"


def instances(record: Record, network: Network) -> Iterator[Instance]:
    for number, generation in enumerate(record.generations):
        for call in generation.calls:
            if not any(call.outputs):
                continue  # for rows that nothing was sampled for
            if not any(call.logprobs):
                raise NotSeen("the sampler's log-probabilities were not seen")
            used = call.used or record.settings.sampling
            if used.others:
                raise NotSeen(f"{', '.join(used.others)} of the sampler has no reference")
            if call.weights is not None:
                compare = partial(_compare, record, network, call)
                yield Instance(f"generation {number + 1}", compare)
        if len(generation.calls) == 1 and generation.batch is not None:
            yield from _told(record, network, generation, f"generation {number + 1}")


def _told(
    record: Record, network: Network, generation: Generation, where: str
) -> Iterator[Instance]:
    """Yield what the trainer was told of the sampler's log-probabilities, beside those that it had."""
    assert generation.batch is not None
    (call,), told = generation.calls, generation.batch.sampler
    if told is None or len(told) != len(call.logprobs):
        return
    counts = [min(len(row), told.shape[1]) for row in call.logprobs]
    got = [row[:count].tolist() for row, count in zip(told, counts, strict=True)]
    own = [row[:count] for row, count in zip(call.logprobs, counts, strict=True)]
    outputs = [row[:count] for row, count in zip(call.outputs, counts, strict=True)]
    said = partial(str, "the trainer was told others than the sampler had")
    yield Instance(
        where,
        partial(_compare_told, record, network, replace(call, logprobs=got, outputs=outputs), own),
        said,
    )


def _compare_told(
    record: Record, network: Network, told: Call, own: list[list[float]], **knobs: Any
) -> Gap | None:
    if knobs:
        return _compare(record, network, told, **knobs)
    got, wanted = (
        torch.tensor([x for row in rows for x in row], dtype=torch.float64)
        for rows in (told.logprobs, own)
    )
    return root_mean_square(got, wanted, wanted.float().double(), record.settings.precision)


def _compare(
    record: Record,
    network: Network,
    call: Call,
    *,
    updates_ago: int = 0,
    reference: bool = False,
    begun: str = "",
    **cuts: Any,
) -> Gap | None:
    """begun: in the names of those weights that are of the beginning."""
    weights = weights_of(record, network, call.weights, updates_ago, reference)
    asked = call.used or record.settings.sampling
    sampling = replace(asked, **cuts)
    if weights is None or (cuts and sampling == asked):
        return None
    if begun:
        first = network.policy(0)
        if not call.weights or not any(begun in name for name in weights):
            return None
        weights = {name: first[name] if begun in name else held for name, held in weights.items()}
    rows = record.chosen(len(call.prompts)).tolist()
    prompts, outputs, logprobs = (
        [each[row] for row in rows] for each in (call.prompts, call.outputs, call.logprobs)
    )
    got = torch.tensor([x for row in logprobs for x in row], dtype=torch.float64)
    # a sampler that the loss is corrected for may be coarser than the trainer: an engine computes in bfloat16
    corrected = bool(record.settings.importance_correction)
    coarse = "bfloat16" if corrected else record.settings.precision
    exact, rounded = (
        torch.tensor(
            [
                value
                for row in network.sampled(weights, prompts, outputs, sampling, precision)
                for value in row
            ],
            dtype=torch.float64,
        )
        for precision in (EXACT, coarse)
    )
    return root_mean_square(got, exact, rounded, coarse)


def weights_of(
    record: Record, network: Network, number: int | None, updates_ago: int, reference: bool
) -> Weights | None:
    """Return the policy's weights of this number or of so many updates before, or the reference's; None where there are none."""
    if reference:
        return record.reference
    if number is None or number < updates_ago:
        return None
    return network.policy(number - updates_ago)


def root_mean_square(got: Tensor, exact: Tensor, rounded: Tensor, precision: str) -> Gap:
    """Compare log-probabilities, [n], by the root of their mean square difference.

    rounded: the same as `exact` in the run's own precision, which tells what rounding makes.
    """
    if got.shape != exact.shape:
        return Gap(math.inf, math.inf)

    def distance(a: Tensor, b: Tensor) -> float:
        off = torch.where(a == b, 0.0, a - b).square()  # infinite on both sides
        return float(off.mean().sqrt().nan_to_num(nan=math.inf)) if off.numel() else 0.0

    off = distance(got, exact)
    known = got.isfinite() & exact.isfinite()
    share = off / float(rounding(distance(rounded, exact), 1.0, precision))
    return Gap(share, off, fit=fitted(got[known], exact[known]))


def places(generation: int, off: Tensor, rows: Tensor | None) -> tuple[Place, ...]:
    """Return the tokens that are off, of a batch [b, C] with these rows of the generation."""
    found = off.nonzero().tolist()
    return tuple(
        Place(generation, int(rows[row]) if rows is not None else row, token)
        for row, token in found
    )


KNOBS = knobs_of(_compare, Sampling)
