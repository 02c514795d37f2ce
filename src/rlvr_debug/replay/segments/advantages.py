"""advantages, importance weights: what the loss multiplies the policy's log-probabilities by."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from pydantic import AllowInfNan
from torch import Tensor

from rlvr_debug.blocks import OneOf
from rlvr_debug.errors import InputError
from rlvr_debug.replay import judge
from rlvr_debug.replay.declared import (
    ALGORITHMS,
    AdvantageInputs,
    Own,
    called,
    declared_text,
    knobs_declared,
)
from rlvr_debug.replay.finding import NotSeen, need, seen
from rlvr_debug.replay.record import Batch, Record
from rlvr_debug.replay.rollouts import batch_of
from rlvr_debug.replay.settings import Settings

# --- advantages: what GRPO makes of the rewards that were used

_SHAKES = 4
_Fitted = Literal["factor", "factor of each group", "baseline"]
_GROUPED: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "blocks": lambda total, size: total.view(-1, size),
    "interleaved": lambda total, size: total.view(size, -1).T,
    "all": lambda total, _: total[None],
}
_CENTRED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda grouped, mean: grouped - mean,
    "leave one out": lambda grouped, mean: (
        (grouped - mean) * grouped.shape[1] / (grouped.shape[1] - 1)
    ),
    "median": lambda grouped, _: grouped - grouped.nanmedian(1, keepdim=True).values,
    "first": lambda grouped, _: grouped - grouped[:, :1],
    "by length": lambda grouped, mean: grouped - mean,
    "none": lambda grouped, _: grouped.clone(),
}
_THEN: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "": lambda found, _: found,
    "negated": lambda found, _: -found,
    "reversed": lambda found, _: found.flip(0),
    "shifted": lambda found, _: found.roll(1),
    "shifted back": lambda found, _: found.roll(-1),
    "clipped to 1": lambda found, _: found.clamp(-1, 1),
    "negative ones dropped": lambda found, _: found.clamp(min=0),
    "zero": lambda found, _: found * 0,
    "transposed": lambda found, size: found.view(-1, size).T.flatten(),
    "absolute": lambda found, _: found.abs(),
    "in bfloat16": lambda found, _: found.bfloat16().to(found.dtype),
}


def advantages(record: Record, _: object) -> Iterator[judge.Instance]:
    """advantages: what GRPO makes of the rewards that were used."""
    for number, generation in enumerate(record.generations):
        rewards = seen(generation.rewards, "the rewards that were used were not seen").double()
        batch = seen(generation.batch, "the advantages were not recorded")
        need(batch.advantages.numel(), "the advantages were not recorded")
        inputs = AdvantageInputs(rewards, batch.loss_mask.sum(-1), record.settings_of(generation))
        given = (inputs, _of_rollouts(batch), record.own)
        compare, said = partial(compare_advantages, *given), partial(_described, *given)
        yield judge.Instance(f"generation {number + 1}", compare, said)


def compare_advantages(
    given: AdvantageInputs, got: Tensor, own: Own, *, fitted: _Fitted | None = None, **knobs: Any
) -> judge.Gap | None:
    if not _applies(given, knobs) or (knobs and callable(own.declared.get("advantages"))):
        return None
    if fitted:
        return None if knobs or got.dim() > 1 else _fitted(given, got, own, fitted)
    wanted, tolerance = _with_tolerance(given, own, knobs)
    return judge.elementwise(got, *_shaped(got, wanted, tolerance))


def _fitted(given: AdvantageInputs, got: Tensor, own: Own, fitted: _Fitted) -> judge.Gap | None:
    """Return the gap to advantages with numbers fitted to them; None where these change nothing."""
    wanted, tolerance = _with_tolerance(given, own, {})
    size = len(got) if fitted == "factor" else given.settings.group_size
    groups, right = got.view(-1, size), wanted.view(-1, size)
    if fitted == "baseline":
        found = right + (groups - right).mean(1, keepdim=True)
    else:
        squares = right.square().sum(1, keepdim=True)
        factors = (groups * right).sum(1, keepdim=True) / squares
        factors = torch.where(squares > 0, factors, 1.0)
        if fitted == "factor of each group" and bool((factors - factors.mean()).abs().max() < 1e-3):
            return None
        found = factors * right
    # a fit takes rounding from every number of its group
    worst = tolerance.view(-1, size).amax(1).repeat_interleave(size)
    return judge.elementwise(got, found.flatten(), 2 * worst)


def _of_rollouts(batch: Batch) -> Tensor:
    """Return each rollout's advantage, [B]; or [B, C], where that is not the same for all tokens that the loss counts."""
    got, counted = batch.advantages.double(), batch.loss_mask.bool()
    if got.dim() == 1:
        return got
    counted = counted if counted.numel() else torch.ones_like(got).bool()
    # of a rollout without such tokens any
    own = got.gather(1, counted.int().argmax(1, keepdim=True))
    got = torch.where(counted, got, own)
    return own[:, 0] if bool((got == own).all()) else got


def _shaped(got: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    return tuple(each if got.dim() == 1 else each[:, None].expand_as(got) for each in values)


def _applies(given: AdvantageInputs, knobs: dict[str, Any]) -> bool:
    rewards, settings = given.rewards, given.settings
    asked = {
        "scale": settings.scale_rewards,
        "epsilon": settings.advantage_epsilon,
        "aggregation": settings.multi_objective_aggregation,
        # without weights is no departure where all are 1
        "weighted": set(settings.reward_weights) != {1.0},
    }
    several = rewards.shape[1] > 1
    departs = (asked.get(name) != value for name, value in knobs.items())
    departing = any(departs) if knobs in ALGORITHMS["advantages"].values() else all(departs)
    return departing and ("only" not in knobs or (several and knobs["only"] < rewards.shape[1]))


def _described(given: AdvantageInputs, got: Tensor, own: Own) -> str:
    wanted, tolerance = _shaped(got, *_with_tolerance(given, own, {}))
    off = (got - wanted).abs() > tolerance
    ratio = (got / wanted)[off & (wanted != 0)]
    times = f", {float(ratio.median()):.3g} times what it should be" if len(ratio) else ""
    what = "advantages" if got.dim() == 1 else "tokens' advantages, which differ within a rollout"
    return f"{int(off.sum())} of its {off.numel()} {what}{times}"


def _with_tolerance(
    given: AdvantageInputs, own: Own, knobs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return advantages, [B], and what rounding may do to each, bound by the worst of its group.

    Rewards are shaken one by one, as a common factor would cancel, and so are the means: in a group of two the spread takes
    back what rewards are shaken by.
    """
    what = own.declared.get("advantages")
    how = Formula(**{**(knobs_declared(own, "advantages")), **knobs})

    def found(inputs: AdvantageInputs, how: Formula = how) -> Tensor:
        if callable(what):
            return torch.as_tensor(called(what, inputs)).double()
        return expected_advantages(inputs.rewards, inputs.settings, how, inputs.lengths)

    wanted, rewards, size = found(given), given.rewards, given.settings.group_size
    if wanted.shape != rewards.shape[:1]:
        shape = list(wanted.shape)
        raise InputError(
            f"{declared_text(what or '')}: returned shape {shape}, expected [{len(rewards)}]"
        )
    generator = torch.Generator().manual_seed(0)
    noise = torch.zeros_like(wanted)
    if callable(what):
        noise = (found(replace(given, rewards=rewards.float())) - wanted).abs()
    for number in range(_SHAKES):
        drawn = 2 * torch.rand(rewards.shape, generator=generator) - 1
        shaken = rewards * (1 + judge.EPSILON * drawn)
        off = replace(how, mean_off=judge.EPSILON * (-1) ** number)
        for values, formula in ((shaken, how), (rewards, off)):
            again = found(replace(given, rewards=values), formula)
            noise = torch.maximum(noise, (again - wanted).abs())
    worst = noise.view(-1, size).amax(1).repeat_interleave(size)
    return wanted, judge.rounding(worst, wanted.abs().clamp(min=0.1), "float32")


@dataclass(frozen=True)
class Formula:
    """Where a variant departs from the settings.

    epsilon, scale, aggregation: other ones; groups, centre, biased: what is compared with what; only: of one function.
    best_of: PKPO's k. mean_off: what means are off by, as rounding does. Scaled by tokens, each rollout counts as often as it
    has some; by "not 0", advantages are divided by the share of rewards that are not.
    """

    scale: Literal["", "group", "batch", "tokens", "not 0", "none"] = ""
    epsilon: float | None = None
    groups: Annotated[str, OneOf(_GROUPED.keys)] = "blocks"
    centre: Annotated[str, OneOf(_CENTRED.keys)] = "mean"
    aggregation: Literal["", "sum_then_normalize", "normalize_then_sum"] = ""
    biased: bool = False
    weighted: bool = True
    only: int | None = None
    missing: Literal["", "zero"] = ""
    best_of: Annotated[int, Ge(2)] | None = None
    then: Annotated[str, OneOf(_THEN.keys)] = ""
    mean_off: float = 0.0


_RIGHT = Formula()


def expected_advantages(
    rewards: Tensor, settings: Settings, how: Formula = _RIGHT, lengths: Tensor | None = None
) -> Tensor:
    """Return the advantage of each rollout, [B]: arXiv 2402.03300, section 4.1.2, 2503.20783, 2601.05242. rewards: [B, K]."""
    weights = torch.tensor(settings.reward_weights, dtype=rewards.dtype)
    if how.only is not None:
        rewards, weights = rewards[:, how.only : how.only + 1], torch.ones(1, dtype=rewards.dtype)
    weights = weights if how.weighted else torch.ones_like(weights)
    scale = how.scale or settings.scale_rewards
    epsilon = settings.advantage_epsilon if how.epsilon is None else how.epsilon
    if how.missing == "zero":
        rewards = rewards.nan_to_num(nan=0.0)

    def spread(values: Tensor) -> Tensor:
        """Return the standard deviation of what is not NaN by its second axis, which is kept."""
        count = (~values.isnan()).sum(1, keepdim=True)
        squares = (values - values.nanmean(1, keepdim=True)).square().nansum(1, keepdim=True)
        return (squares / (count if how.biased else (count - 1).clamp(min=1))).sqrt() + epsilon

    by_part = (how.aggregation or settings.multi_objective_aggregation) == "normalize_then_sum"
    values = rewards
    if by_part:
        by_group = rewards.view(-1, settings.group_size, rewards.shape[1])
        off = by_group - by_group.nanmean(1, keepdim=True) * (1 + how.mean_off)
        values = (off / spread(by_group)).view(rewards.shape)
    total = (values * weights).nansum(1)
    total[rewards.isnan().all(1)] = torch.nan
    if by_part:
        found = (total - total.nanmean()) / spread(total[None])[0]
    else:
        grouped = _GROUPED[how.groups](total, settings.group_size)
        mean = grouped.nanmean(1, keepdim=True)
        if how.centre == "by length":
            counts = _lengths(lengths, total).view(grouped.shape)
            mean = (counts * grouped).nansum(1, keepdim=True) / counts.sum(1, keepdim=True)
        centred = _CENTRED[how.centre](grouped, mean * (1 + how.mean_off))
        if how.best_of is not None:
            centred = _raises_best(grouped, how.best_of)
        elif scale == "group":
            centred = centred / spread(grouped)
        elif scale == "batch":
            centred = centred / spread(total[None])[0]
        elif scale == "not 0":
            centred = centred * len(total) / (total != 0).sum().clamp(min=1)
        elif scale == "tokens":
            counts = _lengths(lengths, total).view(grouped.shape)
            centred = centred - (counts * centred).nansum() / counts.sum() * (1 + how.mean_off)
            variance = (counts * centred.square()).nansum() / (counts.sum() - 1)
            centred = centred / (variance + 1e-8).sqrt()
        found = (centred.T if how.groups == "interleaved" else centred).flatten()
    return _THEN[how.then](found.nan_to_num(nan=0.0), settings.group_size)


def _raises_best(grouped: Tensor, k: int) -> Tensor:
    """Return PKPO's rewards, arXiv 2505.15201, eq. 33: by how much each raises the best of k, summed over all sets of k that
    have it, over the number of all sets of k. [P, G] -> [P, G].
    """
    size = grouped.shape[1]
    need(k <= size, f"a group of {size} has no best of {k}")
    need(not grouped.isnan().any(), "PKPO has no formula for a rollout without a reward")
    # the best of the others is the reward of this rank in as many sets
    sets = [math.comb(rank, k - 2) / math.comb(size, k) for rank in range(size)]
    others = grouped.sort(1).values[:, None]
    raised = (grouped[:, :, None] - others).clamp(min=0)
    return raised @ torch.tensor(sets, dtype=grouped.dtype)


def _lengths(lengths: Tensor | None, total: Tensor) -> Tensor:
    if lengths is None or lengths.shape != total.shape or not lengths.any():
        raise NotSeen("the completion lengths were not recorded")
    return lengths.to(total.dtype)


# --- importance weights: what corrects the loss for a sampler whose log-probabilities are not the trainer's

_Mode = Literal["", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def weights(record: Record, _: object) -> Iterator[judge.Instance]:
    """importance weights: what corrects the loss for a sampler whose log-probabilities are not the trainer's."""
    if not record.settings.importance_correction:
        return
    for number, generation in enumerate(record.generations):
        batch = batch_of(generation)
        correction_of(batch)
        compare = partial(compare_weights, batch, record.settings)
        said = partial(_described_weights, batch)
        yield judge.Instance(f"generation {number + 1}", compare, said)


def correction_of(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights, the old log-probabilities and the sampler's. Raise NotSeen where one of them was not seen."""
    weights, old, sampler = batch.importance_weights, batch.old, batch.sampler
    why = "the importance-sampling weights, or their inputs, were not recorded"
    return seen(weights, why), seen(old, why), seen(sampler, why)


def compare_weights(batch: Batch, settings: Settings, **knobs: Any) -> judge.Gap:
    weights, old, sampler = correction_of(batch)
    unit, got = judge.unit_of((old, sampler)), weights.double()

    def found(by: float) -> Tensor:
        """Return weights of shaken log-probabilities, all of a sequence in one direction, as their errors may sum up."""
        return expected_weights(replace(batch, old=old.double() * by), settings, **knobs)

    wanted = found(1.0)
    tolerance = judge.shaken_by(unit, judge.noise_of(found, unit), wanted)
    # below its smallest normal number float32 has few digits or none
    tolerance = tolerance.clamp(min=torch.finfo(torch.float32).tiny)
    columns = max(got.shape[1], wanted.shape[1])
    values = [each.expand(-1, columns) for each in (got, wanted, tolerance)]
    if columns > 1:  # what a weight does to other tokens than those that count is nothing
        values = [each[batch.loss_mask.bool()] for each in values]
    return judge.elementwise(*values)


def _described_weights(batch: Batch) -> str:
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
    """Return the weight of each token or sequence, [B, C] or [B, 1]: cut to its bounds, or 0 outside (mask), as TRL has them."""
    _, old, sampler = correction_of(batch)
    level, _, how = (mode or settings.importance_correction).partition("_")
    mask = batch.loss_mask.double()
    gap = (old.double() - sampler.double()).nan_to_num(nan=0.0) * mask
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
    """Return what a correction does to a batch.

    gap: nats a token between sampler and trainer. effective_sample_size: relative (Kish). weight_by_length: of sequences
    longer than the median, relative to the others, with its standard error.
    """
    found, old, sampler = correction_of(batch)
    mask, weights = batch.loss_mask.bool(), found.double()
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
    by_length, error = 1.0, 0.0
    if len(longer) > 1 and len(shorter) > 1 and shorter.mean():
        by_length, both = float(longer.mean() / shorter.mean()), (longer, shorter)
        errors = [float(x.std() / x.mean()) / len(x) ** 0.5 if x.any() else 0.0 for x in both]
        error = by_length * math.hypot(*errors)
    return {
        "gap": float((old - sampler)[mask].abs().nanmean()),
        "effective_sample_size": float(size),
        "masked": float((counted == 0).double().mean()),
        "weight_by_length": by_length,
        "standard_error": error,
    }
