"""The loss of GRPO and its relatives, of what is asked for, or of a variant. Axes: b rows, C tokens."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay.declared import LossInputs, called, knobs_declared
from rlvr_debug.replay.finding import seen
from rlvr_debug.replay.record import Batch, MicroBatch, Record, Update
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
    """Where a variant departs from the formula.

    mask: which tokens count; old: what old log-probabilities are; least: the less of both counts; ratio: there is one at all;
    times: what the whole is multiplied by, to the power; window: tokens are counted over the update, else its generation;
    own_tokens: by each process over its own; kl_held: a token's KL is at most 10.
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
    kl_held: bool = False
    times: Literal["", "micro-batches", "processes", "temperature", "two"] = ""
    power: int = 1
    own_tokens: bool = False
    corrected: bool = True
    entropy_sign: int = 1
    window: bool = True


def expected_loss(
    record: Record,
    update: Update,
    micro: MicroBatch,
    logprobs: Tensor,
    entropies: Tensor | None,
    knobs: Mapping[str, Any],
) -> Tensor:
    """Return a micro-batch's part of the update's loss, a scalar. knobs: a variant's.

    arXiv 2402.03300 (GRPO), 2503.14476 (DAPO), 2503.20783 (Dr. GRPO), 2506.13585 (CISPO), 2507.18071 (GSPO), and TRL.
    """
    what = record.own.declared.get("loss")
    if callable(what):
        inputs = loss_inputs(record, update, micro, logprobs, entropies)
        return torch.as_tensor(called(what, inputs))
    # fields of the settings, or of the formula
    knobs = {**knobs_declared(record.own, "loss"), **knobs}
    own = {field.name for field in fields(Formula)}
    how = Formula(**{name: value for name, value in knobs.items() if name in own})
    asked = {name: value for name, value in knobs.items() if name not in own}
    settings = replace(record.settings_of(update), **asked)
    return _Loss(record, update, micro, logprobs, entropies, settings, how).whole()


def loss_inputs(
    record: Record, update: Update, micro: MicroBatch, logprobs: Tensor, entropies: Tensor | None
) -> LossInputs:
    """Return what a declared function is given, in the type of `logprobs`."""
    given = micro.given

    def cast(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(logprobs.dtype)

    return LossInputs(
        logprobs,
        entropies,
        logprobs.detach() if given.old is None else given.old.to(logprobs.dtype),
        cast(given.reference),
        cast(given.sampler),
        cast(given.importance_weights),
        by_token(given.advantages).to(logprobs.dtype),
        given.loss_mask.to(logprobs.dtype),
        record.settings.micro_batches,
        sum(len(each.given.completion_ids) for each in update.micro_batches),
        record.settings_of(update),
    )


def by_token(advantages: Tensor) -> Tensor:
    """Return advantages with an axis for tokens, [b, 1] or [b, C]."""
    return advantages[:, None] if advantages.dim() == 1 else advantages


def kl_estimate(estimator: str, logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return the estimate of each token's KL, in the shape of `logprobs`: joschu.net/blog/kl-approx.html."""
    gap = reference - logprobs
    if estimator == "k1":
        return -gap
    if estimator == "k2":
        return gap.square() / 2
    if estimator == "reversed":
        return (-gap).exp() + gap - 1
    k3 = gap.exp() - gap - 1
    return k3.clamp(max=10) if estimator == "k3_held" else k3


@dataclass(frozen=True)
class _Loss:
    """A micro-batch's part of the loss: settings and formula are a variant's. Tensors are [b, C], or [b, 1] by sequence."""

    record: Record
    update: Update
    micro: MicroBatch
    logprobs: Tensor
    entropies: Tensor | None
    settings: Settings
    how: Formula

    def whole(self) -> Tensor:
        settings, how, given, logprobs = self.settings, self.how, self.micro.given, self.logprobs
        gap = self.log_ratio(how.old)
        if settings.importance_sampling_level == "sequence":
            gap = self.mean(gap)
        if settings.importance_sampling_level == "sequence_token":
            gap = self.mean(gap).detach() + logprobs - logprobs.detach()
        ratio = gap.exp()
        gain = self.gain(ratio) if how.ratio else logprobs * self.advantages
        per_token = -how.sign * gain
        if settings.off_policy_mask_threshold is not None:
            per_token = per_token * self.on_policy(settings.off_policy_mask_threshold)
        counted = self.counted
        if settings.top_entropy_quantile < 1:
            counted = counted * self.high_entropy()
            per_token = per_token * counted
        if how.corrected and settings.importance_correction and settings.loss_type != "vespo":
            weights = seen(given.importance_weights, "the importance weights were not recorded")
            per_token = per_token * weights.to(logprobs.dtype)
        if settings.kl_beta and settings.kl_place == "loss":
            unknown = "no reference log-probabilities were recorded for the KL term"
            reference = seen(given.reference, unknown).to(logprobs.dtype)
            estimator = "reversed" if how.kl_reversed else settings.kl_estimator
            kl = kl_estimate(estimator, logprobs, reference)
            kl = kl.detach() if how.kl_detached else kl
            kl = kl.clamp(-10, 10) if how.kl_held else kl
            kl = kl * ratio if settings.use_bias_correction_kl else kl
            per_token = per_token + how.kl_sign * settings.kl_beta * kl
        as_loss = settings.entropy_mean == "loss"
        if settings.entropy_coef and as_loss:
            bonus = how.entropy_sign * settings.entropy_coef
            per_token = per_token - bonus * self.seen_entropies()
        loss = self.aggregated(per_token)
        if settings.entropy_coef and not as_loss:
            mean = (self.seen_entropies() * counted).sum() / counted.sum().clamp(min=1)
            parts = settings.micro_batches * self.record.size
            loss = loss - how.entropy_sign * settings.entropy_coef * mean / parts
        factors = {
            "": 1.0,
            "micro-batches": float(settings.micro_batches),
            "processes": float(self.record.size),
            "temperature": settings.sampling.temperature,
            "two": 2.0,
        }
        return loss * factors[how.times] ** how.power

    @cached_property
    def advantages(self) -> Tensor:
        return by_token(self.micro.given.advantages).to(self.logprobs.dtype)

    @cached_property
    def counted(self) -> Tensor:
        given, eos = self.micro.given, torch.tensor(self.record.settings.eos_ids)
        return _MASKS[self.how.mask](given.loss_mask.bool(), given, eos).to(self.logprobs.dtype)

    def mean(self, values: Tensor) -> Tensor:
        total = self.counted.sum(1, keepdim=True).clamp(min=1)
        return (values * self.counted).sum(1, keepdim=True) / total

    def log_ratio(self, how: str) -> Tensor:
        given, logprobs = self.micro.given, self.logprobs
        kept = {"reference": given.reference, "sampler": given.sampler}.get(how, given.old)
        old = logprobs.detach() if kept is None or how == "own" else kept.to(logprobs.dtype)
        return old - logprobs if how == "swapped" else logprobs - old

    def gain(self, ratio: Tensor) -> Tensor:
        """Return what each token's loss is to maximise."""
        settings, clipped = self.settings, self.how.clipped
        advantages, logprobs, kind = self.advantages, self.logprobs, settings.loss_type
        low, high = settings.clip, settings.epsilon_high
        if kind == "cispo":
            bounded = ratio.clamp(max=high) if clipped else ratio
            return bounded.detach() * advantages * logprobs
        if kind == "sapo":
            gains, losses = settings.sapo_temperature_pos, settings.sapo_temperature_neg
            warm = torch.where(advantages > 0, gains, losses)
            return torch.sigmoid(warm * (ratio - 1)) * 4 / warm * advantages
        if kind == "vespo":
            return self.vespo() * advantages * logprobs
        if kind == "gmpo":
            gap = ratio.log()
            held = torch.where(advantages > 0, gap.clamp(max=high), gap.clamp(min=-low))
            return self.mean(held if clipped else gap).exp() * advantages
        if kind in ("dppo-tv", "dppo-kl"):
            near = self.near(ratio.detach())
            return ratio.clamp(max=_RATIO).detach() * advantages * logprobs * near
        bounded = ratio.clamp(max=settings.delta) if settings.delta is not None else ratio
        free = bounded * advantages
        if not clipped:
            return free
        held = ratio.clamp(1 - low, 1 + high) * advantages
        return torch.minimum(free, held) if self.how.least else torch.maximum(free, held)

    def near(self, ratio: Tensor) -> Tensor:
        """Return which tokens' probabilities are within the clip of the old ones, by total variation or divergence: arXiv 2602.04879."""
        now = self.logprobs.detach().exp()
        before = now / ratio
        off = now - before
        if self.settings.loss_type == "dppo-kl":
            rest = ((1 - before + 1e-8) / (1 - now + 1e-8)).log()
            off = off.sign() * (rest * (1 - before) - before * ratio.log())
        high, low = self.settings.epsilon_high, -self.settings.clip
        return torch.where(self.advantages > 0, off <= high, off >= low).to(self.logprobs.dtype)

    @torch.no_grad()
    def vespo(self) -> Tensor:
        """Return the weight of each sequence, e^lambda w^k e^(-lambda w), [b, 1]: TRL's get_gamma_weights."""
        low, high = math.log(1e-8), 20.0
        positive_k, positive_lambda, negative_k, negative_lambda = self.settings.vespo
        gap = self.log_ratio("").clamp(-high, high)
        total = (gap * self.counted).sum(1, keepdim=True)
        if self.micro.given.importance_weights is not None:
            weights = self.micro.given.importance_weights.to(self.logprobs.dtype)
            total = total + weights.log().clamp(low, high).sum(1, keepdim=True)
        total = total.clamp(low, high)
        gains = self.advantages >= 0
        k = torch.where(gains, positive_k, negative_k)
        rate = torch.where(gains, positive_lambda, negative_lambda).clamp(min=1e-4)
        return (rate + k * total - rate * total.exp()).exp().nan_to_num(0.0, 0.0, 0.0)

    def on_policy(self, threshold: float) -> Tensor:
        """Return which sequences count: those with a gain, and those near to the policy. DeepSeek-V3.2; [b, 1]."""
        given, now = self.micro.given, self.logprobs.detach()
        kept = given.old if given.sampler is None else given.sampler
        behaviour = now if kept is None else kept.to(now.dtype)
        near = self.mean((behaviour - now).nan_to_num(nan=0.0)) <= threshold
        return ((self.advantages >= 0) | near).to(now.dtype)

    def seen_entropies(self) -> Tensor:
        return seen(self.entropies, "the loss reads entropies, but they were not recorded")

    def high_entropy(self) -> Tensor:
        """Return which tokens are among the share of highest entropy of all processes: arXiv 2506.01939."""
        entropies, real = self.seen_entropies().detach().float(), self.counted.bool()
        pool, size = [entropies[real]], self.record.size
        if size > 1:
            made, ids = self.update.micro_batches, self.micro.given.completion_ids
            place = next(n for n, each in enumerate(made) if each.given.completion_ids is ids)
            first = place - place % size
            pool += [
                each.entropies[each.given.loss_mask.bool()].float()
                for number, each in enumerate(made[first : first + size], first)
                if number != place and each.entropies is not None
            ]
        every = torch.cat(pool)
        if not len(every):
            return torch.zeros_like(self.counted)
        threshold = torch.quantile(every, 1 - self.settings.top_entropy_quantile)
        high: Tensor = (entropies * self.counted >= threshold) & real
        return high.to(self.counted.dtype)

    def aggregated(self, values: Tensor) -> Tensor:
        """Return the tokens' part of the update's loss."""
        settings, mask, micros = self.settings, self.counted, self.update.micro_batches
        rows, kind = sum(len(each.given.completion_ids) for each in micros), settings.loss_type
        if kind in ("grpo", "sapo", "gmpo"):
            return ((values * mask).sum(1) / mask.sum(1).clamp(min=1)).sum() / rows
        total = (values * mask).sum()
        if kind == "bnpo":
            return total / mask.sum().clamp(min=1) / (settings.micro_batches * self.record.size)
        if kind == "dr_grpo":
            return total / (rows * settings.max_completion_length)
        if kind == "luspo":
            return (values * mask).sum(1).sum() / rows
        if settings.tokens_counted == "rows":
            return total / max(1, sum(int(each.given.loss_mask.sum()) for each in micros))
        # how often each generation's tokens are counted in what the sum is divided by
        steps, own = settings.steps_per_generation * self.record.size, self.micro.generation
        shares = {n: k / steps for n, k in Counter(each.generation for each in micros).items()}
        if settings.tokens_counted == "generation":
            shares = {own: len(micros) / steps}
        if not self.how.window:
            shares = {own: 1.0}
        tokens = (self.tokens(number).to(values.dtype) * x for number, x in shares.items())
        return total / sum(tokens)

    def tokens(self, number: int) -> Tensor:
        """Return how many tokens of a generation the loss counts; by a process for itself, as many times its own."""
        generation = self.record.generations[number]
        mask = batch_of(generation).loss_mask
        if self.how.own_tokens:
            mask = mask[torch.tensor(generation.processes) == self.micro.process]
            return mask.sum().clamp(min=1) * self.record.size
        return mask.sum().clamp(min=1)
