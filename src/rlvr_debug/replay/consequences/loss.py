"""KL's gradient, KL's share, settings without effect, correction: what the parts of the loss do, as they are set.

KL's gradient is taken on tables of logits over a few tokens, where an expectation is a sum and not an estimate, and on
policy, as the first update is. Axes: S states, V tokens.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import MicroBatch, Record, Update
from rlvr_debug.replay.segments.importance_weights import summary
from rlvr_debug.replay.segments.loss import gradients
from rlvr_debug.replay.segments.loss_formula import kl_estimate
from rlvr_debug.replay.settings import Settings

# what a loss may read and leave unread: where one of these is set to something else than its default, it should matter
_READ = (
    *("delta", "off_policy_mask_threshold", "top_entropy_quantile", "entropy_coef"),
    *("importance_sampling_level", "epsilon_high", "clip", "use_bias_correction_kl"),
    *("sapo_temperature_pos", "sapo_temperature_neg", "vespo"),
)
_CALLED = {"clip": "epsilon"}  # as arguments of TRL
_NOISES = (0.5, 0.05)  # of log-probabilities, so that ratios are not 1 as in a first update
_DRAWS = 8
_SHARE = 10.0
_STATES, _TOKENS = 64, 16
_NEAR, _FAR = 0.1, 1.0  # standard deviation of the difference in logits
_COSINE = 0.9
_ERROR = 0.5
_APART = 0.05  # nats a token
_KEPT = 0.5
_MASKED = 0.1
_LONG = 0.9
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
        measured[f"cosine_{name}"] = _cosine(term, right)
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
    return Consequence("KL's share", measured, kl <= _SHARE * rest, said)


def _known(update: Update) -> list[MicroBatch]:
    """Return the micro-batches that a formula can be applied to. Raise NotSeen where one has no log-probabilities."""
    if any(m.logprobs is None or not m.given.advantages.numel() for m in update.micro_batches):
        raise NotSeen("what the loss reads was not seen")
    return update.micro_batches


def unread(record: Record) -> Consequence | None:
    """Measure which settings the loss does not read; None where the loss was not seen or is a function of the user's.

    A setting counts that is not as it is by default. It is read where it changes the gradient in any of several draws of
    old log-probabilities and advantages: a clip's bound shows only in ratios between it and the default.
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
            moved = _moved(first, *draw)
            now = gradients(record, moved, {})
            others = {n: gradients(record, moved, {n: getattr(usual, n)}) for n in dead}
            dead = [n for n in dead if torch.equal(now, others[n])]
    except (NotSeen, StopIteration):
        return None
    names = ", ".join(f"`{_CALLED.get(n, n)}` ({getattr(asked, n)})" for n in dead)
    said = f"{names} set, and without effect: the loss does not read {'it' if len(dead) == 1 else 'them'}"
    return Consequence(
        "settings without effect", {"set": len(chosen), "without_effect": len(dead)}, not dead, said
    )


def _moved(update: Update, seed: int, noise: float) -> Update:
    """Return an update whose policy has moved away from the one that sampled, with advantages of 1 and -1."""
    generator = torch.Generator().manual_seed(seed)
    micros = []
    for micro in _known(update):
        assert micro.logprobs is not None
        now = micro.logprobs.double()
        old = (now + noise * torch.randn(now.shape, generator=generator, dtype=now.dtype)).clamp(
            max=0
        )
        entropies = torch.rand(now.shape, generator=generator, dtype=now.dtype)
        signs = torch.randn(micro.given.advantages.shape, generator=generator).sign()
        given = replace(
            micro.given,
            old=old,
            sampler=old if micro.given.sampler is not None else None,
            advantages=signs.to(micro.given.advantages.dtype),
        )
        micros.append(replace(micro, logprobs=now, entropies=entropies, given=given))
    return replace(update, micro_batches=micros)


def _by_token(settings: Settings, policy: Tensor, reference: Tensor) -> Tensor:
    """Return what the term adds to the gradient by each token's log-probability, at beta 1, [S, V].

    In the reward it is a score function: the penalty, as what is to be made small.
    """
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


def _cosine(found: Tensor, right: Tensor) -> float:
    """Return the cosine of two gradients; that of one that is 0, to rounding, is 0."""
    if float(found.norm()) < 1e-9 * float(right.norm()):
        return 0.0
    return float((found * right).sum() / (found.norm() * right.norm()))


# --- the correction for a sampler of its own


def correction(record: Record) -> Consequence | None:
    """Measure the weights of the loss' correction; None where there is none, or nothing that it is made of was seen."""
    found = [
        summary(batch)
        for batch in (generation.batch for generation in record.generations)
        if batch is not None
        and batch.importance_weights is not None
        and batch.old is not None
        and batch.sampler is not None
        and batch.loss_mask.any()
    ]
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
        said.append(
            f"the correction for the sampler leaves {size:.0%} of the effective sample size"
        )
    if masked > _MASKED:
        said.append(f"the correction for the sampler masks {masked:.0%} of its weights")
    if gap <= _APART and long + _ERRORS * measured["standard_error"] < _LONG:
        said.append(
            f"the correction for the sampler gives longer replies {long:.2g} times the weight of shorter ones, though "
            "their tokens agree"
        )
    return Consequence("correction", measured, not said, "; ".join(said))
