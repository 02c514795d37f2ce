"""policy log-probabilities: what the loss reads is a plain forward pass of the weights of that time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import MicroBatch, Record, Weights
from rlvr_debug.replay.segments.sampler import places, root_mean_square, weights_of

SEGMENT = "policy log-probabilities"


def instances(record: Record, network: Network) -> Iterator[Instance]:
    for number, update in enumerate(record.updates):
        for place, micro in enumerate(update.micro_batches):
            if micro.forward is None or micro.logprobs is None:
                raise NotSeen("what the loss reads was not seen")
            if micro.given.loss_mask.any():
                compare = partial(_compare, record, network, micro)
                yield Instance(f"update {number + 1}, micro-batch {place + 1}", compare)


def _compare(
    record: Record,
    network: Network,
    micro: MicroBatch,
    *,
    updates_ago: int = 0,
    power: float = 1.0,
    shifted: int = 0,
    attention: str = "",
) -> Gap | None:
    """power: of the temperature that logits are divided by."""
    weights = weights_of(record, network, micro.weights, updates_ago, False)
    temperature, counted = record.settings.sampling.temperature, micro.given.loss_mask.bool()
    if weights is None or (power != 1 and temperature == 1):
        return None
    got = micro.logprobs
    assert got is not None
    exact, rounded = (
        forward_logprobs(
            network, weights, micro, temperature**power, precision, attention=attention
        ).roll(shifted, 1)
        for precision in (EXACT, record.settings.precision)
    )
    gap = root_mean_square(
        got[counted].double(),
        exact[counted].double(),
        rounded[counted].double(),
        record.settings.precision,
    )
    if gap.share <= 1:
        return gap
    off = counted & ~((got.double() - exact.double()).abs() <= 3 * gap.deviation / gap.share)
    return replace(gap, places=places(micro.generation, off, micro.given.rows))


@torch.no_grad()
def forward_logprobs(
    network: Network,
    weights: Weights,
    micro: MicroBatch,
    temperature: float,
    precision: str,
    *,
    attention: str = "",
) -> Tensor:
    """Return log-probabilities of the completions, [b, C], given what the policy was given. attention: "" or "all"."""
    forward, got = micro.forward, micro.logprobs
    assert forward is not None
    assert got is not None
    if attention == "all":
        forward = replace(forward, attention_mask=None)
    return network.logprobs(weights, forward, got.shape[1], temperature, precision)
