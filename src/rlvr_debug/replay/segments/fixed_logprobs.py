"""Log-probabilities that are computed once for a generation, and held to a plain forward pass: old, reference."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import Batch, Record, Weights
from rlvr_debug.replay.rollouts import batch_of
from rlvr_debug.replay.segments.sampler import root_mean_square

__all__ = ["old_instances", "reference_instances"]

OLD, REFERENCE = "old log-probabilities", "reference log-probabilities"


def old_instances(record: Record, network: Network) -> Iterator[Instance]:
    """They are the policy's of the time of sampling, and needed where a generation serves several updates."""
    used = [0] * len(record.generations)
    for update in record.updates:
        for number in {micro.generation for micro in update.micro_batches}:
            used[number] += 1
    for number, generation in enumerate(record.generations):
        batch = batch_of(generation)
        if batch.old is None and not any(_first_of(record, number)):
            if used[number] > 1:
                yield Instance(
                    f"generation {number + 1}",
                    lambda **_: different(1),
                    lambda: (
                        "none are kept, though it serves several updates: the ratio is always 1"
                    ),
                )
            continue
        for old, part in [(batch.old, batch)] if batch.old is not None else _kept(record, number):
            yield _instance(record, network, old, part, generation.weights, number, reference=False)


def _first_of(record: Record, number: int) -> Iterator[bool]:
    for update in record.updates:
        for micro in update.micro_batches:
            if micro.generation == number:
                yield micro.given.old is not None


def _kept(record: Record, number: int) -> Iterator[tuple[Tensor, Batch]]:
    """Yield old log-probabilities that only the losses were given."""
    for update in record.updates:
        for micro in update.micro_batches:
            if micro.generation == number and micro.given.old is not None:
                yield micro.given.old, micro.given


def reference_instances(record: Record, network: Network) -> Iterator[Instance]:
    """They are the reference model's."""
    for number, generation in enumerate(record.generations):
        batch = batch_of(generation)
        if batch.reference is None:
            if record.settings.kl_beta and any(
                micro.given.reference is None
                for update in record.updates
                for micro in update.micro_batches
            ):
                raise NotSeen("the loss has a KL term, and the reference's were not seen")
            continue
        if record.reference is None:
            raise NotSeen("the reference model's weights were not seen")
        yield _instance(
            record, network, batch.reference, batch, generation.weights, number, reference=True
        )


def _instance(
    record: Record,
    network: Network,
    got: Tensor,
    batch: Batch,
    weights: int,
    number: int,
    *,
    reference: bool,
) -> Instance:
    counted = batch.loss_mask.bool() & batch.completion_mask.bool()

    def compare(
        *,
        model: str = "reference" if reference else "policy",
        updates_ago: int = 0,
        temperature: float | None = None,
        attention: str = "",
    ) -> Gap | None:
        held = _weights(record, network, weights, model, updates_ago)
        if held is None or not counted.any():
            return None if held is None else Gap(0.0)
        exact, rounded = (
            batch_logprobs(record, network, batch, held, temperature, attention, precision)
            for precision in (EXACT, record.settings.precision)
        )
        return root_mean_square(
            got[counted].double(),
            exact[counted].double(),
            rounded[counted].double(),
            record.settings.precision,
        )

    return Instance(f"generation {number + 1}", compare)


def _weights(
    record: Record, network: Network, weights: int, model: str, updates_ago: int
) -> Weights | None:
    if model == "reference":
        return record.reference
    if model == "first policy":
        return network.policy(0)
    return network.policy(weights - updates_ago) if weights >= updates_ago else None


@torch.no_grad()
def batch_logprobs(
    record: Record,
    network: Network,
    batch: Batch,
    weights: Weights,
    temperature: float | None,
    attention: str,
    precision: str,
) -> Tensor:
    """Return log-probabilities of a batch's completions, [B, C]. attention: another mask than the padding's."""
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    return network.logprobs(
        weights,
        ids,
        masked(batch, attention),
        None,
        batch.completion_ids.shape[1],
        record.settings.sampling.temperature if temperature is None else temperature,
        precision,
    )


def masked(batch: Batch, attention: str = "") -> Tensor:
    """Return what a forward pass may attend to, [B, P + C]; `attention` names another mask than the right one."""
    nothing = torch.zeros_like(batch.prompt_mask)
    loss = batch.loss_mask.to(batch.completion_mask.dtype)
    prompt, completion = {
        "": (batch.prompt_mask, batch.completion_mask),
        "loss mask": (nothing, loss),
        "prompt hidden": (nothing, batch.completion_mask),
        "tools hidden": (batch.prompt_mask, loss),
        "all": (torch.ones_like(batch.prompt_mask), torch.ones_like(batch.completion_mask)),
    }[attention]
    return torch.cat([prompt, completion.to(prompt.dtype)], 1)
