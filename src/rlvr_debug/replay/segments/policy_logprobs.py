"""policy log-probabilities: what the loss reads is a plain forward pass of the weights of that time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import Forward, MicroBatch, Record
from rlvr_debug.replay.segments.sampler import places, root_mean_square, weights_of

SEGMENT = "policy log-probabilities"


def instances(record: Record, network: Network) -> Iterator[Instance]:
    for number, update in enumerate(record.updates):
        for place, micro in enumerate(update.micro_batches):
            if micro.forward is None or micro.logprobs is None:
                raise NotSeen("what the loss reads was not seen")
            counted = micro.given.loss_mask.bool()
            if not counted.any():
                continue

            def compare(
                micro: MicroBatch = micro,
                counted: Tensor = counted,
                updates_ago: int = 0,
                power: float = 1.0,
                shifted: int = 0,
                attention: str = "",
            ) -> Gap | None:
                weights = weights_of(record, network, micro.weights, updates_ago, False)
                if weights is None or micro.forward is None or micro.logprobs is None:
                    return None
                temperature = record.settings.sampling.temperature
                if power != 1 and temperature == 1:
                    return None
                exact, rounded = (
                    forward_logprobs(
                        network,
                        weights,
                        micro.forward,
                        micro.logprobs.shape[1],
                        temperature**power,
                        attention,
                        precision,
                    ).roll(shifted, 1)
                    for precision in (EXACT, record.settings.precision)
                )
                got = micro.logprobs
                gap = root_mean_square(
                    got[counted].double(),
                    exact[counted].double(),
                    rounded[counted].double(),
                    record.settings.precision,
                )
                if gap.share <= 1:
                    return gap
                tolerance = gap.deviation / gap.share
                off = counted & ~((got.double() - exact.double()).abs() <= 3 * tolerance)
                return Gap(
                    gap.share, gap.deviation, places(micro.generation, off, micro.given.rows)
                )

            yield Instance(f"update {number + 1}, micro-batch {place + 1}", compare)


@torch.no_grad()
def forward_logprobs(
    network: Network,
    weights: object,
    forward: Forward,
    last: int,
    temperature: float,
    attention: str,
    precision: str,
) -> Tensor:
    """Return log-probabilities of the last tokens, [b, last], given what the policy was given. attention: "" or "all"."""
    return network.logprobs(
        weights,  # type: ignore[arg-type]
        forward.input_ids,
        None if attention == "all" else forward.attention_mask,
        forward.position_ids,
        last,
        temperature,
        precision,
    )
