"""loss: what GRPO makes of log-probabilities and advantages, by its gradient with respect to each token. Axes: b rows, C tokens."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay import judge
from rlvr_debug.replay.declared import ALGORITHMS
from rlvr_debug.replay.finding import Place, need, seen
from rlvr_debug.replay.record import Batch, MicroBatch, Record, Update
from rlvr_debug.replay.segments.logprobs import places
from rlvr_debug.replay.segments.loss_formula import TYPES, by_token, expected_loss

# which part each token of a micro-batch of this number is of, [b, C], by what the parts are
_PARTS: Mapping[str, Callable[[int, Tensor], Tensor]] = {
    "update": lambda _, ids: torch.zeros_like(ids),
    "micro-batch": lambda number, ids: torch.full_like(ids, number),
    "row": lambda number, ids: (number << 32) + torch.arange(len(ids))[:, None].expand_as(ids),
    "place": lambda _, ids: torch.arange(ids.shape[1]).expand_as(ids),
}
_Fitted = Literal["kl_beta", "entropy_coef"]
_ADDED = "log-probabilities of other sequences have a gradient too: a term is added to the loss"
_SAME = 1e-3  # numbers by which gradients are multiplied, so near to each other, are one


def losses(record: Record, _: object) -> Iterator[judge.Instance]:
    """loss: what GRPO makes of log-probabilities and advantages, by its gradient with respect to each token."""
    settings = record.settings
    what = record.own.declared.get("loss")
    known = settings.loss_type in TYPES or what is not None
    need(known, f"no reference code for loss type {settings.loss_type}")
    fixed = not settings.adaptive_entropy or callable(what)
    need(fixed, "the adaptive entropy bonus cannot be recomputed")
    for number, update in enumerate(record.updates):
        micros, where = update.micro_batches, f"update {number + 1}"
        parts = (part for micro in micros for part in (micro.logprobs, micro.grad_logprobs))
        need(
            all(part is not None for part in parts), "the gradient by log-probability was not seen"
        )
        if not micros:
            continue
        known = all(micro.given.advantages.numel() for micro in micros)
        need(known, "the advantages were not recorded")
        yield judge.certain(where, int(any(micro.others for micro in micros)), _ADDED)
        whole = [_with_old(record.generations[m.generation].batch, m) for m in micros]
        update = replace(update, micro_batches=whole)
        given = (record, update, torch.cat([*map(_seen, whole)]))
        yield judge.Instance(where, partial(compare_loss, *given), partial(_described, *given))


def factor_of(record: Record, update: Update) -> float | None:
    """Return the one number that this update's gradient by log-probability has too many, None where that is not all, or not seen."""
    try:
        [*_, instance] = losses(replace(record, updates=[update]), None)
        plain, scaled = instance.compare(), instance.compare(factor="update")
    except Exception:  # the segment says it
        return None
    if plain is None or plain.share <= 1 or scaled is None or scaled.share > 1:
        return None
    got, wanted = (torch.cat([*map(_seen, update.micro_batches)]), gradients(record, update, {}))
    return float(_fit(got, wanted))


def _with_old(whole: Batch | None, micro: MicroBatch) -> MicroBatch:
    """Return the micro-batch with the old log-probabilities of its generation, where the trainer dropped them on the way."""
    given = micro.given
    if given.old is not None or whole is None or whole.old is None:
        return micro
    rows = given.rows
    if rows is None:
        places = {_tokens(whole, row): row for row in range(len(whole.completion_ids))}
        found = [places.get(_tokens(given, row)) for row in range(len(given.completion_ids))]
        if None in found:
            return micro
        rows = torch.tensor(found)
    old = whole.old[rows][:, : given.completion_ids.shape[1]]
    same = old.shape == given.completion_ids.shape
    return replace(micro, given=replace(given, old=old)) if same else micro


def _tokens(batch: Batch, row: int) -> tuple[tuple[int, ...], ...]:
    pairs = (
        (batch.prompt_ids[row], batch.prompt_mask[row]),
        (batch.completion_ids[row], batch.completion_mask[row]),
    )
    return tuple(tuple(ids[real.bool()].tolist()) for ids, real in pairs)


def compare_loss(
    record: Record,
    update: Update,
    got: Tensor,
    *,
    factor: Annotated[str, OneOf(_PARTS.keys)] | None = None,
    fitted: _Fitted | None = None,
    **knobs: Any,
) -> judge.Gap | None:
    if not _applies(record, update, knobs):
        return None
    if callable(record.own.declared.get("loss")) and (knobs or fitted):
        return None  # variants are of the formula
    if factor or fitted:
        if knobs:
            return None
        given = (record, update, got)
        return _scaled(*given, factor) if factor else _linear(*given, fitted)
    if knobs and _far(record, update, got, knobs):
        return judge.Gap(math.inf)
    wanted, tolerance = _with_tolerance(record, update, knobs)
    gap = judge.elementwise(got, wanted, tolerance)
    if gap.share <= 1 or knobs:
        return gap
    found: list[Place] = []
    sizes = [len(_seen(micro)) for micro in update.micro_batches]
    parts = torch.split((got - wanted).abs() > tolerance, sizes)
    for micro, off in zip(update.micro_batches, parts, strict=True):
        ids = micro.given.completion_ids
        found += places(micro.generation, off[: ids.numel()].view(ids.shape), micro.given.rows)
    return replace(gap, places=tuple(found))


def _scaled(record: Record, update: Update, got: Tensor, factor: str) -> judge.Gap | None:
    """Return the gap to the gradient times a number fitted to it, one for each part; None where fewer say the same."""
    wanted, tolerance = _with_tolerance(record, update, {})
    if not len(wanted):
        return None

    def parts(what: str) -> Any:
        own = _by_token(update, lambda n, m: _PARTS[what](n, m.given.completion_ids), behind=True)
        return torch.unique(own, return_inverse=True, return_counts=True)

    _, of, counts = parts(factor)
    sizes = torch.stack([_fit(got[of == n], wanted[of == n]) for n in range(len(counts))])[of]
    coarser = {"micro-batch": "update", "row": "micro-batch", "place": "update"}.get(factor)
    if coarser is not None:
        _, of, counts = parts(coarser)
        means = torch.zeros(len(counts), dtype=sizes.dtype).index_add(0, of, sizes) / counts
        if judge.elementwise(sizes, means[of], torch.tensor(_SAME)).share <= 1:
            return None
    return judge.elementwise(got, sizes * wanted, tolerance * sizes.abs().clamp(min=1))


def _linear(
    record: Record, update: Update, got: Tensor, fitted: _Fitted | None
) -> judge.Gap | None:
    """Return the gap to the gradient with a setting that it is linear in and that is fitted to it."""
    _, tolerance = _with_tolerance(record, update, {})
    if not len(tolerance):
        return None
    zero, one = (gradients(record, update, {str(fitted): value}) for value in (0.0, 1.0))
    return judge.elementwise(got, zero + _fit(got - zero, one - zero) * (one - zero), tolerance)


def _fit(got: Tensor, wanted: Tensor) -> Tensor:
    """Return the number that `wanted` is multiplied by, [n], to come nearest to `got`; 1 where all are 0."""
    size = wanted.square().sum()
    return (got * wanted).sum() / size if size else torch.ones_like(size)


def _applies(record: Record, update: Update, knobs: dict[str, Any]) -> bool:
    settings, given = record.settings_of(update), update.micro_batches[0].given
    needs = {"reference": given.reference, "sampler": given.sampler, "swapped": given.old}
    nothing = {
        "micro-batches": settings.micro_batches == 1,
        "processes": record.size == 1,
        "temperature": settings.sampling.temperature == 1,
    }
    if (
        (knobs.get("old") in needs and needs[knobs["old"]] is None)
        or nothing.get(knobs.get("times", ""))
        or ("own_tokens" in knobs and record.size == 1)
        or (knobs.get("sign") == 0 and not settings.kl_beta)
    ):
        return False
    departs = (getattr(settings, name, None) != value for name, value in knobs.items())
    return any(departs) if knobs in ALGORITHMS["loss"].values() else all(departs)


def _far(record: Record, update: Update, got: Tensor, knobs: dict[str, Any]) -> bool:
    """Return whether a variant is so far off that its rounding need not be known."""
    wanted = gradients(record, update, knobs)
    near = 100 * max(judge.unit_of([update.micro_batches[0].logprobs]), 1e-4)
    return not bool((got - wanted).abs().max() <= near * wanted.abs().max())


def _with_tolerance(record: Record, update: Update, knobs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the gradient that is right, [n], and what rounding may do to it: log-probabilities and advantages are shaken."""
    wanted, first = gradients(record, update, knobs), seen(update.micro_batches[0].logprobs)
    # gradients that are read off those of logits are as coarse as these
    unit = judge.unit_of([first, update.micro_batches[0].grad_logprobs])
    noise = unit * wanted.abs()  # gradients are held in that type too
    # what is coarser than float32 is computed in its own type: 1 - exp(x) of a small x is hardly more than rounding
    dtype = torch.float32 if unit == judge.EPSILON else first.dtype
    for shake in judge.SHAKES:
        others, by = [], 1 + shake * unit
        for micro in update.micro_batches:
            given = replace(micro.given, advantages=micro.given.advantages.double() * by)
            off = seen(micro.logprobs).double() * by + shake * micro.rounding
            shaken = replace(micro, logprobs=off)
            others.append((shaken, replace(micro, given=given)))
        for micros in zip(*others, strict=True):
            found = [expected_gradient(record, update, m, dtype, **knobs) for m in micros]
            noise = torch.maximum(noise, (torch.cat(found) - wanted).abs())
    return wanted, judge.shaken_by(unit, noise, wanted.abs())


def gradients(record: Record, update: Update, knobs: Mapping[str, Any]) -> Tensor:
    return torch.cat([expected_gradient(record, update, m, **knobs) for m in update.micro_batches])


def expected_gradient(
    record: Record,
    update: Update,
    micro: MicroBatch,
    dtype: torch.dtype = torch.float64,
    **knobs: Any,
) -> Tensor:
    """Return the loss' gradient with respect to each log-probability and entropy of a micro-batch, [n], in float64."""
    logprobs = seen(micro.logprobs).detach().to(dtype, copy=True).requires_grad_()
    entropies = None if micro.entropies is None else micro.entropies.to(dtype).requires_grad_()
    loss = expected_loss(record, update, micro, logprobs, entropies, knobs)
    read = [logprobs] if entropies is None else [logprobs, entropies]
    found = [*map(torch.zeros_like, read)]
    if loss.requires_grad:
        found = [*torch.autograd.grad(loss, read, allow_unused=True, materialize_grads=True)]
    return torch.cat([each.double().flatten() for each in found])


# --- which tokens deviate, in words


def _seen(micro: MicroBatch) -> Tensor:
    """Return the recorded gradients, [n], by log-probability and, where the loss reads them, by entropy."""
    parts, by_entropy = [seen(micro.grad_logprobs)], micro.grad_entropies
    if micro.entropies is not None:
        parts.append(torch.zeros_like(micro.entropies) if by_entropy is None else by_entropy)
    return torch.cat([each.double().flatten() for each in parts])


def _by_token(
    update: Update, of: Callable[[int, MicroBatch], Tensor], behind: bool = False
) -> Tensor:
    """Return values of tokens as recorded gradients stand, [n]. behind: entropies, behind log-probabilities, have them too."""
    found = []
    for number, micro in enumerate(update.micro_batches):
        own = of(number, micro).flatten()
        rest = own if behind else torch.zeros_like(own)
        found += [own, rest[: len(_seen(micro)) - len(own)]]
    return torch.cat(found)


def _described(record: Record, update: Update, got: Tensor) -> str:
    """Return which tokens deviate by what they are, and by what factor."""
    wanted, tolerance = _with_tolerance(record, update, {})
    off = (got - wanted).abs() > tolerance
    live = (wanted.abs() > tolerance) | (got.abs() > tolerance)
    kinds = _kinds(update)

    def overlap(kind: Tensor) -> float:
        union = (off | (kind & live)).sum()
        return float((off & kind).sum() / union.clamp(min=1))

    best = max(kinds, key=lambda name: overlap(kinds[name]))
    said = f"{int(off.sum())} of {int(live.sum())} tokens deviate: {best} ({overlap(kinds[best]):.0%} match)"
    ratio = (got / wanted)[off]
    ratio = ratio[ratio.isfinite()]
    if len(ratio):
        low, middle, high = (float(ratio.quantile(q)) for q in (0.05, 0.5, 0.95))
        said += f", {middle:.3g} times what it should be (median; {low:.3g} to {high:.3g})"
    return said


def _kinds(update: Update) -> dict[str, Tensor]:
    """Return of what kind each of the recorded gradients is, [n], by the kinds' names; of entropies none."""

    def flat(of: Callable[[Batch, Tensor], Tensor]) -> Tensor:
        return _by_token(update, lambda _, m: of(m.given, m.given.loss_mask.bool()))

    mask, last = flat(lambda _, mask: mask), len(update.micro_batches) - 1
    gain = flat(lambda given, mask: by_token(given.advantages).expand(mask.shape))
    ending = flat(lambda _, mask: mask & ~(mask.flip(1).cumsum(1).flip(1) > 1))
    number = _by_token(update, lambda n, m: torch.full_like(m.given.completion_ids, n))
    found = {
        "trained tokens": mask,
        "negative advantages": mask & (gain < 0),
        "positive advantages": mask & (gain > 0),
        "the last token of sequences": ending,
        "all but the last token of sequences": mask & ~ending,
        "the first token of sequences": flat(lambda _, mask: mask & ~(mask.cumsum(1) > 1)),
        "untrained tokens": flat(lambda _, mask: ~mask),
        "tool tokens": flat(lambda given, mask: given.completion_mask.bool() & ~mask),
    }
    if last:
        found["the first micro-batch"] = mask & (number == 0)
        found["all micro-batches but the first"] = mask & (number > 0)
        found["the last micro-batch"] = mask & (number == last)
    return found
