"""Log-probabilities that are computed once for a generation, and held to a plain forward pass: old, reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different, in_bfloat16
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import Batch, Forward, Record, Weights
from rlvr_debug.replay.rollouts import batch_of
from rlvr_debug.replay.segments.sampler import root_mean_square
from rlvr_debug.replay.segments.saved import weights_gap
from rlvr_debug.replay.variants import knobs_of

__all__ = ["Attention", "changed", "old_instances", "reference_instances"]

OLD, REFERENCE = "old log-probabilities", "reference log-probabilities"
Attention = Literal["", "loss mask", "prompt hidden", "tools hidden", "all"]
_Then = Literal["", "shifted", "shifted back", "in bfloat16", "other rows"]


def old_instances(record: Record, network: Network) -> Iterator[Instance]:
    """Yield the policy's of the time of sampling, which are needed where a generation serves several updates."""
    micros = [micro for update in record.updates for micro in update.micro_batches]
    for number, generation in enumerate(record.generations):
        where = f"generation {number + 1}"
        own = [micro.given for micro in micros if micro.generation == number]
        whole = batch_of(generation)
        kept = [
            batch for batch in ([whole] if whole.old is not None else own) if batch.old is not None
        ]
        for batch in kept if generation.weights is not None else ():
            held = _Held(record, network, batch, "old", generation.weights)
            compare = partial(_compare, held)
            yield Instance(where, compare)
        serves = {
            n
            for n, u in enumerate(record.updates)
            for m in u.micro_batches
            if m.generation == number
        }
        if not kept and len(serves) > 1:
            if all(m.grad_logprobs is None for m in micros if m.generation == number):
                raise NotSeen("neither old log-probabilities nor a loss that reads them were seen")
            said = f"none are kept, though it serves {len(serves)} updates: the ratio is always 1"
            yield Instance(where, _missing, partial(str, said))


def _missing(**_: Any) -> Gap:
    return different(1)


def reference_instances(record: Record, network: Network) -> Iterator[Instance]:
    """Yield the reference model's, and whether that is the model that training began with."""
    known = record.reference is not None and record.weights and not record.settings.first_step
    if known and any(
        each.batch and each.batch.reference is not None for each in record.generations
    ):
        said = partial(str, "the reference is not the model that training began with")
        yield Instance("the beginning", partial(_compare_begun, record, network), said)
    for number, generation in enumerate(record.generations):
        batch = batch_of(generation)
        if batch.reference is None:
            if record.settings.kl_beta:
                raise NotSeen("the loss has a KL term, and the reference's were not seen")
            continue
        if record.reference is None:
            raise NotSeen("the reference model's weights were not seen")
        moved = replace(record, reference=_followed(record, network, number))
        held = _Held(moved, network, batch, "reference", generation.weights)
        yield Instance(f"generation {number + 1}", partial(_compare, held))


def _compare_begun(
    record: Record, network: Network, *, another: bool = False, **knobs: Any
) -> Gap | None:
    if knobs:
        return None
    assert record.reference is not None
    gap = weights_gap(record.reference, *network.both(0))
    return different(gap.share <= 1) if another else gap


def _followed(record: Record, network: Network, number: int) -> Weights | None:
    """Return the reference of a generation, which follows the policy where that is asked for: arXiv 2404.09656."""
    every, share = record.settings.reference_every, record.settings.reference_share
    held = record.reference
    if held is None or not every:
        return held
    for step, update in enumerate(record.updates, record.settings.first_step + 1):
        before = all(micro.generation < number for micro in update.micro_batches)
        if before and step % every == 0:
            policy = network.policy(update.after)
            held = {n: (1 - share) * w + share * policy[n].to(w.dtype) for n, w in held.items()}
    return held


@dataclass(frozen=True)
class _Held:
    """Log-probabilities that are kept: `which` of the batch's; weights: number of the policy's at their time, where known."""

    record: Record
    network: Network
    batch: Batch
    which: str
    weights: int | None


def _compare(
    held: _Held,
    *,
    model: Literal["", "policy", "first policy", "reference"] = "",
    updates_ago: int = 0,
    another: bool = False,
    then: _Then = "",
    **forward: Any,
) -> Gap | None:
    if another:
        return None
    record, network, which = held.record, held.network, held.which
    model = model or ("reference" if which == "reference" else "policy")
    weights = _weights(record, network, held.weights, model, updates_ago)
    batch = held.batch.of_rows(record.chosen(len(held.batch.completion_ids)))
    counted = batch.loss_mask.bool() & batch.completion_mask.bool()
    if weights is None:
        return None
    if not counted.any():
        return Gap(0.0)
    exact, rounded = (
        batch_logprobs(record, network, batch, weights, precision, **forward).double()
        for precision in (EXACT, record.settings.precision)
    )
    got: Tensor = getattr(batch, which).double()
    if then == "other rows" and len(got) > 1:
        order = nearest_others(got, exact, counted)
        exact, rounded, counted = exact[order], rounded[order], counted & counted[order]
    exact, rounded, counted = changed(then, (exact, rounded, counted))
    return root_mean_square(
        got[counted], exact[counted], rounded[counted], record.settings.precision
    )


def nearest_others(got: Tensor, exact: Tensor, counted: Tensor) -> Tensor:
    """Return for each row which other row's log-probabilities it has most nearly, [B]. All are [B, C]."""
    both = counted[:, None] & counted[None]
    off = ((got[:, None] - exact[None]).square() * both).sum(2) / both.sum(2).clamp(min=1)
    off[~both.any(2)] = torch.inf
    return off.fill_diagonal_(torch.inf).argmin(1)


def changed(then: str, values: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, the same in the run's own precision, and which count, as a variant has them; [B, C]."""
    exact, rounded, counted = values
    if then == "in bfloat16":
        exact, rounded = in_bfloat16(exact, (rounded - exact).abs().max())
    if then in ("shifted", "shifted back"):
        by = 1 if then == "shifted" else -1
        exact, rounded = exact.roll(by, 1), rounded.roll(by, 1)
        counted = counted & counted.roll(by, 1)  # at the end there is no neighbour
    return exact, rounded, counted


def _weights(
    record: Record, network: Network, weights: int | None, model: str, updates_ago: int
) -> Weights | None:
    if model == "reference":
        return record.reference
    if model == "first policy":
        return network.policy(0)
    return (
        None if weights is None or weights < updates_ago else network.policy(weights - updates_ago)
    )


@torch.no_grad()
def batch_logprobs(
    record: Record,
    network: Network,
    batch: Batch,
    weights: Weights,
    precision: str,
    *,
    temperature: float | None = None,
    attention: Attention = "",
) -> Tensor:
    """Return log-probabilities of a batch's completions, [B, C]. attention: another mask than the padding's."""
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    return network.logprobs(
        weights,
        Forward(ids, masked(batch, attention)),
        batch.completion_ids.shape[1],
        record.settings.sampling.temperature if temperature is None else temperature,
        precision,
    )


def masked(batch: Batch, attention: Attention = "") -> Tensor:
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


KNOBS = knobs_of(_compare, batch_logprobs)
