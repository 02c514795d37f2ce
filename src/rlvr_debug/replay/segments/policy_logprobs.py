"""policy log-probabilities: what the loss reads is a plain forward pass of the weights of that time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import Forward, MicroBatch, Record, Weights
from rlvr_debug.replay.segments.fixed_logprobs import changed
from rlvr_debug.replay.segments.sampler import places, root_mean_square, weights_of
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "policy log-probabilities"
_Then = Literal["", "shifted", "shifted back", "in bfloat16", "bounded", "times a constant by row"]


def instances(record: Record, network: Network) -> Iterator[Instance]:
    for number, update in enumerate(record.updates):
        for place, micro in enumerate(update.micro_batches):
            if micro.forward is None or micro.logprobs is None:
                raise NotSeen("what the loss reads was not seen")
            if micro.given.loss_mask.any():
                count = len(micro.given.loss_mask)
                most = -(-record.rows // len(update.micro_batches))
                rows = record.chosen(count, most)
                compare = partial(_compare, network, micro, rows)
                yield Instance(f"update {number + 1}, micro-batch {place + 1}", compare)


def _compare(
    network: Network,
    micro: MicroBatch,
    rows: Tensor,
    *,
    updates_ago: int = 0,
    power: float = 1.0,
    then: _Then = "",
    attention: Literal["", "all"] = "",
) -> Gap | None:
    """rows: of the micro-batch, that are looked at. power: of the temperature that logits are divided by. then: what is done to the log-probabilities."""
    record = network.record
    weights = weights_of(record, network, micro.weights, updates_ago, False)
    temperature = record.settings.sampling.temperature
    counted = micro.given.loss_mask[rows].bool()
    if weights is None or (power != 1 and temperature == 1):
        return None
    assert micro.logprobs is not None
    assert micro.forward is not None
    got, forward = micro.logprobs[rows], micro.forward.of_rows(rows)
    if attention == "all":
        forward = replace(forward, attention_mask=None)
    exact, rounded = (
        _logprobs(network, weights, forward, got.shape[1], temperature**power, precision)
        for precision in (EXACT, record.settings.precision)
    )
    exact, rounded, counted = changed(then, (exact, rounded, counted))
    if then == "bounded":
        least = got[counted].min()
        exact, rounded = exact.clamp(min=float(least)), rounded.clamp(min=float(least))
    if then == "times a constant by row":
        own = (got.double() * exact * counted).sum(1) / (exact.square() * counted).sum(1)
        exact, rounded = exact * own[:, None], rounded * own[:, None]
    gap = root_mean_square(
        got[counted].double(),
        exact[counted].double(),
        rounded[counted].double(),
        record.settings.precision,
    )
    if gap.share <= 1:
        return gap
    off = counted & ~((got.double() - exact.double()).abs() <= 3 * gap.deviation / gap.share)
    own = rows if micro.given.rows is None else micro.given.rows[rows]
    return replace(gap, places=places(micro.generation, off, own))


@torch.no_grad()
def _logprobs(
    network: Network,
    weights: Weights,
    forward: Forward,
    width: int,
    temperature: float,
    precision: str,
) -> Tensor:
    return network.logprobs(weights, forward, width, temperature, precision)


KNOBS = knobs_of(_compare)
