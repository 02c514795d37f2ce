"""Log-probabilities, held to a plain forward pass of the weights of their time: the sampler's, old ones, the reference's, the policy's."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor

from rlvr_debug.replay import judge
from rlvr_debug.replay.finding import NotSeen, Place, need, seen
from rlvr_debug.replay.network import EXACT, Network
from rlvr_debug.replay.record import Batch, Call, Forward, Generation, MicroBatch, Record, Weights
from rlvr_debug.replay.rollouts import batch_of, what_is_read
from rlvr_debug.replay.segments.weights import weights_gap

Attention = Literal["", "loss mask", "prompt hidden", "tools hidden", "all"]
_Then = Literal["", "shifted", "shifted back", "in bfloat16"]


def root_mean_square(got: Tensor, exact: Tensor, rounded: Tensor, precision: str) -> judge.Gap:
    """Compare log-probabilities by the root of their mean square difference. rounded: `exact` in the run's own precision."""
    if got.shape != exact.shape:
        return judge.Gap(math.inf, math.inf)

    def distance(a: Tensor, b: Tensor) -> float:
        off = torch.where(a == b, 0.0, a - b).square()  # infinite on both sides
        return float(off.mean().sqrt().nan_to_num(nan=math.inf)) if off.numel() else 0.0

    off = distance(got, exact)
    known = got.isfinite() & exact.isfinite()
    share = off / float(judge.rounding(distance(rounded, exact), 1.0, precision))
    return judge.Gap(share, off, fit=judge.fitted(got[known], exact[known]))


def places(generation: int, off: Tensor, rows: Tensor | None) -> tuple[Place, ...]:
    """Return the tokens that are off, of a batch [b, C] with these rows of the generation."""
    return tuple(
        Place(generation, row if rows is None else int(rows[row]), token)
        for row, token in off.nonzero().tolist()
    )


def _weights_before(network: Network, number: int | None, updates_ago: int) -> Weights | None:
    """Return the policy's weights of so many updates before this number; None where there are none."""
    known = number is not None and number >= updates_ago
    return network.policy(number - updates_ago) if known and number is not None else None


# --- the sampler's


def sampler(record: Record, network: Network) -> Iterator[judge.Instance]:
    """sampler: its log-probabilities are those of the policy's weights of that time, in the distribution asked for."""
    for number, generation in enumerate(record.generations):
        where, asked = f"generation {number + 1}", record.settings_of(generation).sampling
        calls = [replace(call, used=call.used or asked) for call in generation.calls]
        for call in calls:
            if not any(call.outputs):
                continue  # for rows that nothing was sampled for
            need(any(call.logprobs), "the sampler's log-probabilities were not recorded")
            used = seen(call.used)
            need(not used.others, f"the sampler's {', '.join(used.others)} cannot be recomputed")
            if call.weights is not None:
                yield judge.Instance(where, partial(compare_sampler, network, call))
        batch = generation.batch
        if len(calls) == 1 and batch is not None and batch.sampler is not None:
            # what the trainer was told of them, beside those that the sampler had
            [call] = calls
            if len(batch.sampler) == len(call.logprobs):
                compare = partial(_compare_told, network, call, batch)
                said = "the trainer was told others than the sampler had"
                yield judge.Instance(where, compare, said)


def _flat(rows: list[list[float]]) -> Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def _compare_told(network: Network, call: Call, batch: Batch, **knobs: Any) -> judge.Gap | None:
    """Compare them as far as each row's tokens are those that were sampled: what comes after is of `tokens`."""
    told = seen(batch.sampler)
    rows = zip(batch.completion_ids.tolist(), call.outputs, call.logprobs, strict=True)
    alike = ([a == b for a, b, _ in zip(*row, strict=False)] for row in rows)
    counts = [(*each, False).index(False) for each in alike]
    got = [row[:count].tolist() for row, count in zip(told, counts, strict=True)]
    if knobs:
        outputs = [row[:count] for row, count in zip(call.outputs, counts, strict=True)]
        return compare_sampler(network, replace(call, logprobs=got, outputs=outputs), **knobs)
    own = _flat([row[:count] for row, count in zip(call.logprobs, counts, strict=True)])
    precision = network.record.settings.precision
    return root_mean_square(_flat(got), own, own.float().double(), precision)


def compare_sampler(
    network: Network,
    call: Call,
    *,
    updates_ago: int = 0,
    reference: bool = False,
    begun: str = "",
    blind: bool = False,
    **cuts: Any,
) -> judge.Gap | None:
    """begun: in the names of those weights that are of the beginning. blind: each token was drawn from the one before alone."""
    record = network.record
    weights = record.reference if reference else _weights_before(network, call.weights, updates_ago)
    asked = seen(call.used)
    sampling = replace(asked, **cuts)
    if weights is None or (cuts and sampling == asked):
        return None
    if begun:
        first = network.policy(0)
        if not call.weights or not any(begun in name for name in weights):
            return None
        weights = {name: first[name] if begun in name else held for name, held in weights.items()}
    rows = record.chosen(len(call.prompts)).tolist()
    prompts, outputs = ([each[row] for row in rows] for each in (call.prompts, call.outputs))
    width = max(map(len, call.prompts))
    drawn = partial(network.sampled_blind, width=width) if blind else network.sampled
    # a sampler that the loss is corrected for may be coarser than the trainer: an engine computes in bfloat16
    corrected = bool(record.settings.importance_correction)
    coarse = "bfloat16" if corrected else record.settings.precision
    exact, rounded = (
        _flat(drawn(weights, prompts, outputs, sampling, precision))
        for precision in (EXACT, coarse)
    )
    return root_mean_square(_flat([call.logprobs[row] for row in rows]), exact, rounded, coarse)


# --- those that are computed once for a generation


@dataclass(frozen=True)
class _Held:
    """Log-probabilities that are kept: `which` of the batch's.

    weights, read: numbers of the policy's when they were computed, and when a micro-batch reads them, where known. heat:
    the temperature of the generation.
    """

    network: Network
    batch: Batch
    which: str
    weights: int | None
    reference: Weights | None
    heat: float
    read: int | None = None

    @classmethod
    def of(
        cls,
        network: Network,
        batch: Batch,
        which: str,
        generation: Generation,
        reference: Weights | None,
        read: int | None = None,
    ) -> Self:
        heat = network.record.settings_of(generation).sampling.temperature
        return cls(network, batch, which, generation.weights, reference, heat, read)


def old(record: Record, network: Network) -> Iterator[judge.Instance]:
    """Yield the policy's of the time of sampling, which are needed where a generation serves several updates."""
    for number, generation in enumerate(record.generations):
        where, whole = f"generation {number + 1}", batch_of(generation)
        served = [
            [micro for micro in update.micro_batches if micro.generation == number]
            for update in record.updates
        ]
        micros = [micro for each in served for micro in each]
        own: list[tuple[Batch, int | None]] = [(whole, None)] if whole.old is not None else []
        own += [(m.given, m.weights) for m in micros if not own or _other_old(whole, m.given)]
        kept = [(batch, read) for batch, read in own if batch.old is not None]
        for batch, read in kept:
            sampled = generation if read is None else _sampled(record, number, batch)
            if sampled.weights is not None:
                held = _Held.of(network, batch, "old", sampled, record.reference, read)
                yield judge.Instance(where, partial(compare_held, held))
        serves = sum(bool(each) for each in served)
        if not kept and serves > 1:
            known = any(micro.grad_logprobs is not None for micro in micros)
            need(known, "no old log-probabilities, nor a loss that reads them, were recorded")
            said = f"none are kept, though it serves {serves} updates: the ratio is always 1"
            yield judge.certain(where, 1, said)


def _sampled(record: Record, number: int, given: Batch) -> Generation:
    """Return the generation that a micro-batch of this one was sampled in: an earlier one where rollouts are replayed."""
    rows = _sequences(given)
    found = (g for g in record.generations[number::-1] if g.batch and rows <= _sequences(g.batch))
    return next(found, record.generations[number])


def _sequences(batch: Batch) -> set[tuple[int, ...]]:
    """Return the rows' tokens, without padding."""
    whole = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    pairs = zip(whole, masked(batch).bool(), strict=True)
    return {tuple(ids[real].tolist()) for ids, real in pairs}


def _other_old(whole: Batch, given: Batch) -> bool:
    """Return whether a micro-batch has its rows' tokens and other old log-probabilities than the generation."""
    if whole.old is None or given.old is None or given.rows is None:
        return False
    kept, width = whole.of_rows(given.rows), given.completion_ids.shape[1]
    same = torch.equal(kept.completion_ids[:, :width], given.completion_ids)
    before = seen(kept.old)[:, :width]
    return same and not torch.equal(before.nan_to_num(), given.old.nan_to_num())


def computed_again(network: Network, generation: Generation, given: Batch) -> bool:
    """Return whether a micro-batch has other old log-probabilities than its generation, which can be held to their weights."""
    if generation.weights is None or not _other_old(batch_of(generation), given):
        return False
    try:
        compare_held(_Held.of(network, given, "old", generation, None))
    except NotSeen:
        return False
    return True


def reference(record: Record, network: Network) -> Iterator[judge.Instance]:
    """Yield the reference model's, and whether that is the model that training began with."""
    known = record.reference is not None and record.weights and not record.settings.first_step
    if known and any(_referenced(record, number) for number in range(len(record.generations))):
        said = "the reference is not the model that training began with"
        yield judge.Instance("the beginning", partial(_compare_begun, network), said)
    for number, generation in enumerate(record.generations):
        batches = _referenced(record, number)
        unread = batches or not record.settings.kl_beta
        need(unread, "no reference log-probabilities were recorded for the KL term")
        for batch in batches:
            seen(record.reference, "the reference model's weights were not recorded")
            weights = _followed(network, number)
            held = _Held.of(network, batch, "reference", generation, weights)
            yield judge.Instance(f"generation {number + 1}", partial(compare_held, held))


def _referenced(record: Record, number: int) -> list[Batch]:
    """Return what has the reference's log-probabilities: a generation's batch, or its micro-batches."""
    whole = batch_of(record.generations[number])
    parts = [m.given for u in record.updates for m in u.micro_batches if m.generation == number]
    own = [whole] if whole.reference is not None else parts
    return [batch for batch in own if batch.reference is not None]


def _compare_begun(network: Network, *, another: bool = False, **knobs: Any) -> judge.Gap | None:
    if knobs:
        return None
    gap = weights_gap(seen(network.record.reference), *network.both(0))
    return judge.different(gap.share <= 1) if another else gap


def _followed(network: Network, number: int) -> Weights | None:
    """Return the reference of a generation, which follows the policy where that is asked for: arXiv 2404.09656."""
    record = network.record
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


def compare_held(
    held: _Held,
    *,
    model: Literal["", "policy", "first policy", "reference", "the update's"] = "",
    updates_ago: int = 0,
    another: bool = False,
    then: _Then | Literal["other rows"] = "",
    **forward: Any,
) -> judge.Gap | None:
    if another:
        return None
    network, settings = held.network, held.network.record.settings
    weights = held.reference
    if model in ("", "policy") and (model or held.which == "old"):
        weights = _weights_before(network, held.weights, updates_ago)
    elif model == "first policy":
        weights = network.policy(0)
    elif model == "the update's":
        later = held.read is not None and held.read != held.weights
        weights = _weights_before(network, held.read, 0) if later else None
    batch = held.batch.of_rows(network.record.chosen(len(held.batch.completion_ids)))
    counted = batch.loss_mask.bool() & batch.completion_mask.bool()
    if weights is None:
        return None
    if not counted.any():
        return judge.Gap(0.0)
    forward = {"temperature": held.heat, **forward}
    exact, rounded = (
        batch_logprobs(network, batch, weights, precision, **forward).double()
        for precision in (EXACT, settings.precision)
    )
    got: Tensor = getattr(batch, held.which).double()
    if then == "other rows" and len(got) > 1:
        # of each row, which other row's log-probabilities it has most nearly
        both = counted[:, None] & counted[None]
        off = ((got[:, None] - exact[None]).square() * both).sum(2) / both.sum(2).clamp(min=1)
        off[~both.any(2)] = torch.inf
        order = off.fill_diagonal_(torch.inf).argmin(1)
        exact, rounded, counted = exact[order], rounded[order], counted & counted[order]
    exact, rounded, counted = _changed(then, exact, rounded, counted)
    return root_mean_square(got[counted], exact[counted], rounded[counted], settings.precision)


def _changed(
    then: str, exact: Tensor, rounded: Tensor, counted: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, the same in the run's own precision, and which count, as a variant has them; [B, C]."""
    if then == "in bfloat16":
        exact, rounded = judge.in_bfloat16(exact, (rounded - exact).abs().max())
    if then in ("shifted", "shifted back"):
        by = 1 if then == "shifted" else -1
        exact, rounded = exact.roll(by, 1), rounded.roll(by, 1)
        counted = counted & counted.roll(by, 1)  # at the end there is no neighbour
    return exact, rounded, counted


@torch.no_grad()
def batch_logprobs(
    network: Network,
    batch: Batch,
    weights: Weights,
    precision: str,
    *,
    temperature: float,
    attention: Attention = "",
) -> Tensor:
    """Return log-probabilities of a batch's completions, [B, C]. attention: another mask than the padding's."""
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    forward = Forward(ids, masked(batch, attention))
    return network.chosen(weights, forward, batch.completion_ids.shape[1], temperature, precision)[
        0
    ]


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


# --- the policy's, which the loss reads


def policy(record: Record, network: Network) -> Iterator[judge.Instance]:
    """policy log-probabilities: what the loss reads is a plain forward pass of the weights of that time."""
    for number, update in enumerate(record.updates):
        for place, micro in enumerate(update.micro_batches):
            known = micro.forward is not None and micro.logprobs is not None
            need(known, "what the loss reads was not seen")
            if micro.given.loss_mask.any():
                most = -(-record.rows // len(update.micro_batches))
                rows = record.chosen(len(micro.given.loss_mask), most)
                compare = partial(compare_policy, network, micro, rows)
                yield judge.Instance(f"update {number + 1}, micro-batch {place + 1}", compare)


def compare_policy(
    network: Network,
    micro: MicroBatch,
    rows: Tensor,
    *,
    updates_ago: int = 0,
    power: float = 1.0,
    then: _Then | Literal["bounded", "times a constant by row"] = "",
    attention: Literal["", "all"] = "",
) -> judge.Gap | None:
    """rows: of the micro-batch, that are looked at. power: of the temperature that logits are divided by. then: what is done to the log-probabilities."""
    settings, given = network.record.settings, micro.given
    weights = _weights_before(network, micro.weights, updates_ago)
    heat = network.record.temperature_at(micro)
    counted = given.loss_mask[rows].bool()
    if weights is None or (power != 1 and heat == 1):
        return None
    got, forward = seen(micro.logprobs)[rows], what_is_read(micro).of_rows(rows)
    if attention == "all":
        forward = replace(forward, attention_mask=None)
    with torch.no_grad():
        exact, rounded = (
            network.chosen(weights, forward, got.shape[1], heat**power, precision)[0]
            for precision in (EXACT, settings.precision)
        )
    exact, rounded, counted = _changed(then, exact, rounded, counted)
    if then == "bounded":
        exact, rounded = (each.clamp(min=float(got[counted].min())) for each in (exact, rounded))
    if then == "times a constant by row":
        own = (got.double() * exact * counted).sum(1) / (exact.square() * counted).sum(1)
        exact, rounded = exact * own[:, None], rounded * own[:, None]
    at, right, near = (each[counted].double() for each in (got, exact, rounded))
    gap = root_mean_square(at, right, near, settings.precision)
    if gap.share <= 1:
        return gap
    off = counted & ~((got.double() - exact.double()).abs() <= 3 * gap.deviation / gap.share)
    own = rows if given.rows is None else given.rows[rows]
    return replace(gap, places=places(micro.generation, off, own))
