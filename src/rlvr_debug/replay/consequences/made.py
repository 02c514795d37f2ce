"""What a run makes of that, as it is set: what the parts of its loss do, and how far its weights move.

KL's gradient is taken on tables of logits over a few tokens, where an expectation is a sum and not an estimate, and on
policy, as the first update is. Axes: S states, V tokens.
"""

import math
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.replay.finding import Consequence, NotSeen, need, seen
from rlvr_debug.replay.record import MicroBatch, Record, Update
from rlvr_debug.replay.segments.advantages import summary
from rlvr_debug.replay.segments.loss import gradients
from rlvr_debug.replay.segments.loss_formula import kl_estimate
from rlvr_debug.replay.settings import Settings

# --- correction, KL's gradient, KL's share, settings without effect

# what a loss may read and leave unread: where one of these is set to something else than its default, it should matter
_READ = (
    *("delta", "off_policy_mask_threshold", "top_entropy_quantile", "entropy_coef"),
    *("importance_sampling_level", "epsilon_high", "clip", "use_bias_correction_kl"),
    *("sapo_temperature_pos", "sapo_temperature_neg", "vespo"),
)
_CALLED = {"clip": "epsilon", "kl_beta": "beta"}  # as arguments of TRL
# of log-probabilities, so that ratios are not 1 as in a first update
_NOISES = (0.5, 0.2, 0.1, 0.05)
_DRAWS = 16
_LARGEST = 10.0
_STATES, _TOKENS = 64, 16
_NEAR, _FAR = 0.1, 1.0  # standard deviation of the difference in logits
_COSINE = 0.9
_ERROR = 0.5
_APART = 0.05  # nats a token
_KEPT = 0.5
_MASKED = 0.1
_LONG = 0.9
_ROUNDED = 1.001
_ERRORS = 1.64  # below by more than chance in one of twenty


def kl_gradient(record: Record) -> Consequence | None:
    """Measure the KL term's expected gradient against that of KL(policy || reference); None at beta 0."""
    settings = record.settings
    if not settings.kl_beta:
        return None
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(_STATES, _TOKENS, generator=generator, dtype=torch.float64)

    logits = noise()
    measured = {"beta": settings.kl_beta}
    for name, distance in (("near", _NEAR), ("far", _FAR)):
        policy = (logits + distance * noise()).log_softmax(-1)
        reference = logits.log_softmax(-1)
        term = _to_logits(policy.exp() * _by_token(settings, policy, reference), policy)
        right = _to_logits(policy.exp() * (policy - reference), policy)
        sizes = float(term.norm()), float(right.norm())
        # that of one that is 0, to rounding, is 0
        there = sizes[0] >= 1e-9 * sizes[1]
        cosine = float((term * right).sum() / (term.norm() * right.norm())) if there else 0.0
        measured[f"cosine_{name}"] = cosine
        measured[f"relative_error_{name}"] = float((term - right).norm() / right.norm())
    passed = measured["cosine_near"] > _COSINE and measured["relative_error_near"] < _ERROR
    said = (
        f"the KL term holds nothing: {settings.kl_estimator} in the {settings.kl_place} has a gradient of cosine "
        f"{measured['cosine_near']:.2g} to the KL's"
    )
    return Consequence("KL's gradient", measured, passed, said)


def kl_share(record: Record) -> Consequence | None:
    """Measure the KL's part of the last update's gradient by log-probability against the reward's; None without either."""
    settings = record.settings
    updates = [u for u in record.updates if u.micro_batches]
    if not settings.kl_beta or settings.kl_place != "loss" or not updates:
        return None
    if callable(record.own.declared.get("loss")):
        return None
    last = updates[-1]
    try:
        _known(last)
        kl, rest = (
            float(gradients(record, last, knobs).norm())
            for knobs in ({"sign": 0, "entropy_coef": 0.0}, {"kl_beta": 0.0})
        )
    except NotSeen:
        return None
    if not kl or not rest:
        return None
    measured = {"beta": settings.kl_beta, "kl": kl, "reward": rest}
    said = f"the KL term has {kl / rest:.3g} times the gradient of the reward's part of the loss"
    return Consequence("KL's share", measured, kl <= _LARGEST * rest, said)


def _known(update: Update) -> list[MicroBatch]:
    """Return the micro-batches that a formula can be applied to. Raise NotSeen where one has no log-probabilities."""
    micros = update.micro_batches
    known = all(m.logprobs is not None and m.given.advantages.numel() for m in micros)
    need(known, "what the loss reads was not seen")
    return micros


def cap(record: Record) -> Consequence | None:
    """Measure the share of tokens that cispo's cap cuts in the first update; None of another loss."""
    settings, first = record.settings, next((u for u in record.updates if u.micro_batches), None)
    if settings.loss_type != "cispo" or first is None:
        return None
    counted = []
    for micro in first.micro_batches:
        if micro.logprobs is None:
            return None
        now, old = micro.logprobs, micro.given.old
        counted.append((now - (now if old is None else old)).exp()[micro.given.loss_mask.bool()])
    cut = torch.cat(counted) > settings.epsilon_high * _ROUNDED
    share = float(cut.double().mean().nan_to_num())
    said = (
        f"{share:.0%} of the tokens are at cispo's cap in the first update, as `epsilon_high` caps the ratio itself: each "
        f"weighs {settings.epsilon_high:g}"
    )
    return Consequence("cap", {"share": share, "cap": settings.epsilon_high}, share < _KEPT, said)


def unread(record: Record) -> Consequence | None:
    """Measure which chosen settings change no gradient in any of several draws; None where the loss was not seen or is the user's.

    A clip's bound shows only in ratios between it and the default.
    """
    asked, usual = record.settings, Settings(1, record.settings.sampling, 1)
    chosen = [name for name in _READ if _CALLED.get(name, name) in record.own.chosen]
    chosen = [name for name in chosen if getattr(asked, name) != getattr(usual, name)]
    if callable(record.own.declared.get("loss")):
        return None
    try:
        first = next(update for update in record.updates if update.micro_batches)
        dead, draws = chosen, ((seed, noise) for noise in _NOISES for seed in range(_DRAWS))
        while dead and (draw := next(draws, None)):
            moved = _moved_away(asked, first, *draw)
            now = gradients(record, moved, {})
            others = {n: gradients(record, moved, {n: getattr(usual, n)}) for n in dead}
            dead = [n for n in dead if torch.equal(now, others[n])]
    except (NotSeen, StopIteration):
        return None
    names = ", ".join(f"`{_CALLED.get(n, n)}` ({getattr(asked, n)})" for n in dead)
    said = f"{names} set, and without effect: the loss does not read {'it' if len(dead) == 1 else 'them'}"
    measured = {"set": len(chosen), "without_effect": len(dead)}
    return Consequence("settings without effect", measured, not dead, said)


def changed(record: Record) -> Consequence | None:
    """Measure which settings were changed while the run trained; None where none was."""
    begun = {**vars(record.settings), "temperature": record.settings.sampling.temperature}
    last: dict[str, Any] = {}
    for one in [each.changed for each in record.generations] + [u.changed for u in record.updates]:
        last |= one.values()
    said = [
        f"`{_CALLED.get(name, name)}` went from {_short(begun[name])} to {_short(value)}"
        for name, value in last.items()
    ]
    measured = {"changed": len(said)}
    return Consequence("settings changed", measured, False, ", ".join(said)) if said else None


def _short(value: Any) -> str:
    return ", ".join(map(_short, value)) if isinstance(value, tuple) else f"{value:.3g}"


def _moved_away(settings: Settings, update: Update, seed: int, noise: float) -> Update:
    """Return an update whose policy has moved away from the one that sampled, with advantages of 1 and -1.

    Some sequences have become so unlikely that a threshold on their mean log-ratio leaves them out.
    """
    far = 2 * (settings.off_policy_mask_threshold or 0.0)
    generator = torch.Generator().manual_seed(seed)
    micros = []
    for micro in _known(update):
        now = seen(micro.logprobs).double()
        # of whole sequences too, whose ratio is a mean over tokens
        of_tokens, of_rows = (
            noise * torch.randn(shape, generator=generator, dtype=now.dtype)
            for shape in (now.shape, (len(now), 1))
        )
        off = of_tokens + of_rows
        old = now + off.clamp(max=0)
        entropies = torch.rand(now.shape, generator=generator, dtype=now.dtype)
        signs = torch.randn(micro.given.advantages.shape, generator=generator).sign()
        now = now - off.clamp(min=0) - far * torch.randint(2, (len(now), 1), generator=generator)
        given = replace(
            micro.given,
            old=old,
            sampler=old if micro.given.sampler is not None else None,
            advantages=signs.to(micro.given.advantages.dtype),
        )
        micros.append(replace(micro, logprobs=now, entropies=entropies, given=given))
    return replace(update, micro_batches=micros)


def _by_token(settings: Settings, policy: Tensor, reference: Tensor) -> Tensor:
    """Return what the term adds to the gradient by each token's log-probability, at beta 1, [S, V]; in the reward, the penalty."""
    if settings.kl_place == "reward":
        return kl_estimate(settings.kl_estimator, policy, reference)
    held = policy.detach()
    leaf = policy.clone().requires_grad_()
    term = kl_estimate(settings.kl_estimator, leaf, reference)
    if settings.use_bias_correction_kl:
        term = (leaf - held).exp() * term
    [gradient] = torch.autograd.grad(term.sum(), leaf)
    return gradient


def _to_logits(weights: Tensor, policy: Tensor) -> Tensor:
    """Return the gradient of sum(weights * log p) with respect to the logits, weights being constants, [S, V]."""
    return weights - weights.sum(-1, keepdim=True) * policy.exp()


# --- the correction for a sampler of its own


def correction(record: Record) -> Consequence | None:
    """Measure the weights of the loss' correction; None where there is none, or nothing that it is made of was seen."""
    found = []
    for batch in (each.batch for each in record.generations):
        if batch is not None and batch.loss_mask.any():
            with suppress(NotSeen):
                found.append(summary(batch))
    if not found:
        return None
    measured = {name: sum(each[name] for each in found) / len(found) for name in found[0]}
    measured["standard_error"] = math.hypot(*(e["standard_error"] for e in found)) / len(found)
    gap, size = measured["gap"], measured["effective_sample_size"]
    masked, long = measured["masked"], measured["weight_by_length"]
    said = []
    if gap > _APART:
        said.append(f"sampler and trainer differ by {gap:.2g} nats a token")
    if size < _KEPT:
        left = f"{size:.0%} of the effective sample size"
        said.append(f"the correction for the sampler leaves {left}")
    if masked > _MASKED:
        said.append(f"the correction for the sampler masks {masked:.0%} of its weights")
    if gap <= _APART and long + _ERRORS * measured["standard_error"] < _LONG:
        said.append(
            f"the correction for the sampler gives longer replies {long:.2g} times the weight of shorter ones, though "
            "their tokens agree"
        )
    return Consequence("correction", measured, not said, "; ".join(said))


# --- schedule, rate in effect, weights moved

_RATE = 0.1
_AHEAD = 0.01  # of the rate, by the end at today's pace: warm-ups that begin slowly have a tenth of it early on
_MOVED = 0.5


def schedule(record: Record) -> Consequence | None:
    """Measure the warm-up's share of the training; None where no optimizer step was seen."""
    settings = record.settings
    if not any(update.optimizer for update in record.updates):
        return None
    share = settings.warmup_steps / max(settings.total_steps, 1)
    measured = {"warmup_steps": settings.warmup_steps, "total_steps": settings.total_steps}
    said = f"the warm-up of {settings.warmup_steps} steps does not end in the {settings.total_steps} steps of the training"
    return Consequence("schedule", measured, not settings.warmup_steps or share < 1, said)


def rate(record: Record) -> Consequence | None:
    """Measure the largest rate of the optimizer's groups against the one that is set; None where none was seen."""
    asked = record.settings.learning_rate
    rates = [max(g.learning_rate for g in u.groups) for u in record.updates if u.groups]
    if not rates or not asked:
        return None
    share, settings = max(rates) / asked, record.settings
    steepest = max((b - a for a, b in pairwise(rates)), default=asked)
    left = settings.total_steps - settings.first_step - len(rates)
    rising = steepest > 0 and (left < 0 or rates[-1] + steepest * (left + 1) >= _AHEAD * asked)
    measured = {"asked": asked, "in_effect": max(rates), **_moves(record)}
    said = f"the rate in effect is {max(rates):.3g}, {share:.3g} times the {asked:.3g} that is set"
    if "relative" in measured:
        said += f"; an update moves the weights by {measured['relative']:.2g} of their size"
    # a schedule that warms up, or has come to its end, is one that was asked for
    late = settings.first_step > settings.total_steps / 2
    if over := not rates[-1] and max(rates) > 0 and left > 0 and not late:
        said = f"the rate is 0 in the last recorded step, and {left} steps of the training are left"
    return Consequence(
        "rate in effect", measured, (share >= _RATE or rising or late) and not over, said
    )


def weights_moved(record: Record) -> Consequence | None:
    """Measure how many of the trained numbers an update changes; None where weights or an optimizer's step were not seen."""
    measured = _moves(record)
    if not measured:
        return None
    said = (
        f"an update changes {measured['share']:.1%} of the trained numbers that have a gradient: the others are held in "
        "fewer digits than it moves them by"
    )
    return Consequence("weights moved", measured, measured["share"] >= _MOVED, said)


def _moves(record: Record) -> dict[str, float]:
    """Return by how much the updates with a gradient and a rate move the weights, and what share of these; {} where none was."""
    changed = count = 0
    moved = size = 0.0
    for update in record.updates:
        if update.clipped is None or not any(group.learning_rate for group in update.groups):
            continue
        if max(update.before, update.after) >= len(record.weights):
            continue  # the record has no weights
        before, after = record.weights[update.before], record.weights[update.after]
        for name in record.trainable:
            gradient = update.clipped.get(name)
            if gradient is None or name not in before or name not in after:
                continue
            old, new = (record.part(name, each[name]) for each in (before, after))
            off = new.double() - old.double()
            changed += int(((off != 0) & (gradient != 0)).sum())
            count += int((gradient != 0).sum())
            moved += float(off.square().sum())
            size += float(old.double().square().sum())
    if not count or not size:
        return {}
    return {"share": changed / count, "relative": (moved / size) ** 0.5}
