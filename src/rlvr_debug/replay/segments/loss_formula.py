"""The loss of GRPO and its relatives, as a formula of log-probabilities: of what is asked for, or of a variant.

Axes: b rows, C tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay.declared import LossInputs, called, knobs_declared
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Batch, Generation, MicroBatch, Record, Update
from rlvr_debug.replay.rollouts import batch_of
from rlvr_debug.replay.settings import Settings

_RATIO = 20.0  # DPPO truncates the ratio there
# TRL's _compute_loss knows no others
TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")


# which tokens the loss counts, [b, C], of the loss mask, the micro-batch and the tokens that end a reply
_MASKS: Mapping[str, Callable[[Tensor, Batch, Tensor], Tensor]] = {
    "": lambda mask, *_: mask,
    "without eos": lambda mask, given, eos: mask & ~torch.isin(given.completion_ids, eos),
    "with tools": lambda _, given, __: given.completion_mask.bool(),
    "with padding": lambda mask, *_: torch.ones_like(mask),
    "without the first": lambda mask, *_: mask & (torch.arange(mask.shape[1]) > 0),
    "without the last": lambda mask, *_: mask & mask.roll(-1, 1),
    "shifted": lambda mask, *_: torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1),
}


@dataclass(frozen=True)
class Formula:
    """Where a variant departs from the formula: which tokens count (mask), what old log-probabilities are, whether the
    ratio is clipped, the less of both counts and there is a ratio at all, signs, whether the KL is that of the
    reference to the policy and whether it has a gradient, what the
    whole is multiplied by (times, to the power), whether the sampler is corrected for, and whether tokens are counted over
    the update (window) or over its generation, or by each process over its own (own_tokens).
    """

    mask: Annotated[str, OneOf(_MASKS.keys)] = ""
    old: Literal["", "own", "reference", "sampler", "swapped"] = ""
    clipped: bool = True
    least: bool = True
    ratio: bool = True
    sign: int = 1
    kl_sign: int = 1
    kl_reversed: bool = False
    kl_detached: bool = False
    times: Literal["", "micro-batches", "processes", "temperature", "two"] = ""
    power: int = 1
    own_tokens: bool = False
    corrected: bool = True
    entropy_sign: int = 1
    window: bool = True


def _told(record: Record, knobs: Mapping[str, Any]) -> tuple[Settings, Formula]:
    """Return the settings and the formula of a variant of what is declared. knobs: fields of either."""
    own = {field.name for field in fields(Formula)}
    knobs = {**knobs_declared(record.own, "loss"), **knobs}
    departing = {name: value for name, value in knobs.items() if name not in own}
    formula = Formula(**{name: value for name, value in knobs.items() if name in own})
    return replace(record.settings, **departing), formula


def expected_loss(
    record: Record,
    update: Update,
    micro: MicroBatch,
    logprobs: Tensor,
    entropies: Tensor | None,
    knobs: Mapping[str, Any],
) -> Tensor:
    """Return a micro-batch's part of the update's loss, a scalar. logprobs, entropies: [b, C]; knobs: a variant's.

    arXiv 2402.03300 (GRPO), 2503.14476 (DAPO), 2503.20783 (Dr. GRPO), 2506.13585 (CISPO), 2507.18071 (GSPO), and TRL's
    GRPOConfig for the others.
    """
    what = record.own.declared.get("loss")
    if callable(what):
        return torch.as_tensor(called(what, _inputs(record, update, micro, logprobs, entropies)))
    settings, how = _told(record, knobs)
    given = micro.given
    advantages = given.advantages.to(logprobs.dtype)
    advantages = advantages[:, None] if advantages.dim() == 1 else advantages
    eos = torch.tensor(record.settings.eos_ids)
    counted = _MASKS[how.mask](given.loss_mask.bool(), given, eos).to(logprobs.dtype)
    gap = _log_ratio(micro, logprobs, how.old)
    if settings.importance_sampling_level == "sequence":
        gap = _mean(gap, counted)
    if settings.importance_sampling_level == "sequence_token":
        gap = _mean(gap, counted).detach() + logprobs - logprobs.detach()
    weight = gap.exp()
    per_token = -how.sign * (
        _gain(settings, micro, logprobs, weight, advantages, counted, (how.clipped, how.least))
        if how.ratio
        else logprobs * advantages
    )
    if settings.off_policy_mask_threshold is not None:
        per_token = per_token * _on_policy(settings, micro, logprobs, advantages, counted)
    high = None
    if settings.top_entropy_quantile < 1:
        if entropies is None:
            raise NotSeen("the loss reads entropies, and these were not seen")
        pool = _pool(record, update, micro, entropies.detach(), counted)
        high = _high_entropy(entropies.detach(), counted, pool, settings.top_entropy_quantile)
        per_token = per_token * high
    if how.corrected and settings.importance_correction and settings.loss_type != "vespo":
        if given.importance_weights is None:
            raise NotSeen("the importance weights were not seen")
        per_token = per_token * given.importance_weights.to(logprobs.dtype)
    if settings.kl_beta and settings.kl_place == "loss":
        estimator = "reversed" if how.kl_reversed else settings.kl_estimator
        kl = kl_estimate(estimator, logprobs, _reference(micro, logprobs))
        kl = kl.detach() if how.kl_detached else kl
        kl = kl * weight if settings.use_bias_correction_kl else kl
        per_token = per_token + how.kl_sign * settings.kl_beta * kl
    loss = _aggregated(record, settings, update, micro, per_token, counted, how)
    if settings.entropy_coef:
        if entropies is None:
            raise NotSeen("the loss reads entropies, and these were not seen")
        bonus = counted if high is None else counted * high
        mean = (entropies * bonus).sum() / bonus.sum().clamp(min=1)
        parts = settings.micro_batches * record.size
        loss = loss - how.entropy_sign * settings.entropy_coef * mean / parts
    factors = {
        "": 1.0,
        "micro-batches": float(settings.micro_batches),
        "processes": float(record.size),
        "temperature": settings.sampling.temperature,
        "two": 2.0,
    }
    return loss * factors[how.times] ** how.power


def _inputs(
    record: Record, update: Update, micro: MicroBatch, logprobs: Tensor, entropies: Tensor | None
) -> LossInputs:
    """Return what a declared function is given, in the type of `logprobs`."""
    given = micro.given

    def cast(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(logprobs.dtype)

    advantages = given.advantages.to(logprobs.dtype)
    return LossInputs(
        logprobs,
        entropies,
        logprobs.detach() if given.old is None else given.old.to(logprobs.dtype),
        cast(given.reference),
        cast(given.sampler),
        cast(given.importance_weights),
        advantages[:, None] if advantages.dim() == 1 else advantages,
        given.loss_mask.to(logprobs.dtype),
        record.settings.micro_batches,
        sum(len(each.given.completion_ids) for each in update.micro_batches),
        record.settings,
    )


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return each sequence's mean over the tokens that count, [b, 1]."""
    return (values * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1)


def _log_ratio(micro: MicroBatch, logprobs: Tensor, how: str) -> Tensor:
    given = micro.given
    kept = {"reference": given.reference, "sampler": given.sampler}.get(how, given.old)
    old = logprobs.detach() if kept is None or how == "own" else kept.to(logprobs.dtype)
    return old - logprobs if how == "swapped" else logprobs - old


def _gain(
    settings: Settings,
    micro: MicroBatch,
    logprobs: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    counted: Tensor,
    how: tuple[bool, bool],
) -> Tensor:
    """Return what each token's loss is to maximise, [b, C] or [b, 1]."""
    clipped, least = how
    if settings.loss_type == "cispo":
        bounded = ratio.clamp(max=settings.epsilon_high) if clipped else ratio
        return bounded.detach() * advantages * logprobs
    if settings.loss_type == "sapo":
        warm = torch.where(
            advantages > 0, settings.sapo_temperature_pos, settings.sapo_temperature_neg
        )
        return torch.sigmoid(warm * (ratio - 1)) * 4 / warm * advantages
    if settings.loss_type == "vespo":
        return _vespo(settings, micro, logprobs, advantages, counted) * advantages * logprobs
    if settings.loss_type == "gmpo":
        low, high = -settings.clip, settings.epsilon_high
        gap = ratio.log()
        held = torch.where(advantages > 0, gap.clamp(max=high), gap.clamp(min=low))
        return _mean(held if clipped else gap, counted).exp() * advantages
    if settings.loss_type in ("dppo-tv", "dppo-kl"):
        near = _near(settings, logprobs.detach(), ratio.detach(), advantages)
        return ratio.clamp(max=_RATIO).detach() * advantages * logprobs * near
    bounded = ratio.clamp(max=settings.delta) if settings.delta is not None else ratio
    free = bounded * advantages
    if not clipped:
        return free
    held = ratio.clamp(1 - settings.clip, 1 + settings.epsilon_high) * advantages
    return torch.minimum(free, held) if least else torch.maximum(free, held)


def _near(settings: Settings, logprobs: Tensor, ratio: Tensor, advantages: Tensor) -> Tensor:
    """Return which tokens' probabilities have not left the old ones by more than the clip, [b, C]: arXiv 2602.04879.

    The distance is that of two outcomes, this token or another: total variation, or the divergence of the old to the new.
    """
    now = logprobs.exp()
    before = now / ratio
    if settings.loss_type == "dppo-tv":
        off = now - before
    else:
        rest = ((1 - before + 1e-8) / (1 - now + 1e-8)).log()
        off = (now - before).sign() * (rest * (1 - before) - before * ratio.log())
    near = torch.where(advantages > 0, off <= settings.epsilon_high, off >= -settings.clip)
    return near.to(logprobs.dtype)


@torch.no_grad()
def _vespo(
    settings: Settings, micro: MicroBatch, logprobs: Tensor, advantages: Tensor, counted: Tensor
) -> Tensor:
    """Return the weight of each sequence, e^lambda w^k e^(-lambda w), [b, 1]: TRL's get_gamma_weights."""
    low, high = math.log(1e-8), 20.0
    positive_k, positive_lambda, negative_k, negative_lambda = settings.vespo
    gap = _log_ratio(micro, logprobs, "").clamp(-high, high)
    total = (gap * counted).sum(1, keepdim=True)
    if micro.given.importance_weights is not None:
        weights = micro.given.importance_weights.to(logprobs.dtype)
        total = total + weights.log().clamp(low, high).sum(1, keepdim=True)
    total = total.clamp(low, high)
    gains = advantages >= 0
    k = torch.where(gains, positive_k, negative_k)
    rate = torch.where(gains, positive_lambda, negative_lambda).clamp(min=1e-4)
    return (rate + k * total - rate * total.exp()).exp().nan_to_num(0.0, 0.0, 0.0)


def _reference(micro: MicroBatch, logprobs: Tensor) -> Tensor:
    if micro.given.reference is None:
        raise NotSeen("the loss has a KL term, and the reference's log-probabilities were not seen")
    return micro.given.reference.to(logprobs.dtype)


def kl_estimate(estimator: str, logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return the estimate of each token's KL, in the shape of `logprobs`: joschu.net/blog/kl-approx.html."""
    gap = reference - logprobs
    if estimator == "k1":
        return -gap
    if estimator == "k2":
        return gap.square() / 2
    if estimator == "reversed":
        return (-gap).exp() + gap - 1
    return gap.exp() - gap - 1


def _on_policy(
    settings: Settings, micro: MicroBatch, logprobs: Tensor, advantages: Tensor, counted: Tensor
) -> Tensor:
    """Return which sequences count: those with a gain, and those near to the policy. DeepSeek-V3.2; [b, 1]."""
    given = micro.given
    kept = given.old if given.sampler is None else given.sampler
    behaviour = logprobs.detach() if kept is None else kept.to(logprobs.dtype)
    gap = (behaviour - logprobs.detach()).nan_to_num(nan=0.0)
    mean = (gap * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True).clamp(min=1)
    assert settings.off_policy_mask_threshold is not None
    near = mean <= settings.off_policy_mask_threshold
    return ((advantages >= 0) | near).to(logprobs.dtype)


def _pool(
    record: Record, update: Update, micro: MicroBatch, entropies: Tensor, counted: Tensor
) -> Tensor:
    """Return the entropies of all tokens that one is ranked among, [n]: those that all processes compute at the same time."""
    own, ids = [entropies[counted.bool()].float()], micro.given.completion_ids
    if record.size > 1:
        made = update.micro_batches
        place = next(n for n, each in enumerate(made) if each.given.completion_ids is ids)
        first = place - place % record.size
        own += [
            each.entropies[each.given.loss_mask.bool()].float()
            for number, each in enumerate(made[first : first + record.size], first)
            if number != place and each.entropies is not None
        ]
    return torch.cat(own)


def _high_entropy(entropies: Tensor, counted: Tensor, pool: Tensor, quantile: float) -> Tensor:
    """Return which tokens are among the share `quantile` of highest entropy: arXiv 2506.01939; [b, C]. pool: of all of them."""
    if not len(pool):
        return torch.zeros_like(counted)
    threshold = torch.quantile(pool, 1 - quantile)
    return ((entropies.float() * counted >= threshold) & counted.bool()).to(counted.dtype)


def _aggregated(
    record: Record,
    settings: Settings,
    update: Update,
    micro: MicroBatch,
    values: Tensor,
    mask: Tensor,
    how: Formula,
) -> Tensor:
    """Return a micro-batch's part of the update's loss. values: [b, C] or [b, 1].

    how.window: tokens are counted over the update, as settings.tokens_counted says; else over the generation, whatever
    part of it the update is of.
    """
    rows = sum(len(each.given.completion_ids) for each in update.micro_batches)
    kind = settings.loss_type
    if kind in ("grpo", "sapo", "gmpo"):
        return ((values * mask).sum(1) / mask.sum(1).clamp(min=1)).sum() / rows
    if kind == "bnpo":
        parts = settings.micro_batches * record.size
        return (values * mask).sum() / mask.sum().clamp(min=1) / parts
    if kind == "dr_grpo":
        return (values * mask).sum() / (rows * settings.max_completion_length)
    if kind == "luspo":
        return (values * mask).sum(1).sum() / rows
    tokens = sum(
        _tokens(record, record.generations[number], micro, how).to(values.dtype) * share
        for number, share in _counted_in(record, settings, update, micro, how.window).items()
    )
    return (values * mask).sum() / tokens


def _tokens(record: Record, generation: Generation, micro: MicroBatch, how: Formula) -> Tensor:
    """Return how many tokens of a generation the loss counts; by a process for itself, as many times its own."""
    mask = batch_of(generation).loss_mask
    if how.own_tokens:
        mask = mask[torch.tensor(generation.processes) == micro.process]
        return mask.sum().clamp(min=1) * record.size
    return mask.sum().clamp(min=1)


def _counted_in(
    record: Record, settings: Settings, update: Update, micro: MicroBatch, window: bool
) -> dict[int, float]:
    """Return how often each generation's tokens are counted in what a micro-batch's sum is divided by."""
    if not window:
        return {micro.generation: 1.0}
    steps = settings.steps_per_generation * record.size
    if settings.tokens_counted == "generation":
        return {micro.generation: len(update.micro_batches) / steps}
    passes = Counter(each.generation for each in update.micro_batches)
    return {number: count / steps for number, count in passes.items()}
