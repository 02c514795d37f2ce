"""What the KL term estimates and where its gradient points, on exact policies: tables of logits over a few tokens.

No sample and no model is used, as an expectation is a sum: what is left of an error is the formula's. States are
independent of each other.

Axes: S states, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.grpo.loss import Experience
from rlvr_debug.grpo.objective import KL_ESTIMATORS, Totals, kl_estimate, penalized
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.metrics.logprobs import loss_terms


def random_policies(distances: Sequence[float], states: int = 64, tokens: int = 16) -> list[Tensor]:
    """Return log-probabilities [S, V], in float64, the same at each call: a random policy, then policies
    whose logits differ from its by noise of these standard deviations."""
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(states, tokens, generator=generator, dtype=torch.float64)

    first = noise()
    others = ((first + distance * noise()).log_softmax(-1) for distance in distances)
    return [first.log_softmax(-1), *others]


def kl_gradient(policy: Tensor, reference: Tensor) -> Tensor:
    """Return the gradient of KL(policy || reference) with respect to the policy's logits, [S, V]."""
    return to_logits(policy.exp() * (policy - reference), policy)


def to_logits(weights: Tensor, policy: Tensor) -> Tensor:
    """Return the gradient of sum(weights * log p) with respect to the logits, [S, V]; weights are constants."""
    return weights - weights.sum(-1, keepdim=True) * policy.exp()


def term_gradient(
    policy: Tensor,
    old: Tensor,
    reference: Tensor,
    settings: TrainingSettings,
    stages: Stages,
    *,
    weighted: bool = False,
) -> Tensor:
    """Return what the trainer's KL term adds to the gradient of the logits, in expectation over tokens of
    `old`: [S, V], as are the log-probabilities.

    The term is taken at beta 1, from the trainer's own loss. In the reward it is a score function: minus
    the penalty is the advantage of its token. weighted: there, by the ratio of policy to old (without a
    clip), as PPO's objective does; in the loss use_bias_correction_kl says so.
    """
    count = policy.numel()
    settings = replace(settings, kl_beta=1.0, clip=1.0, epsilon_high=float("inf"), delta=0.0)

    def column(values: Tensor) -> Tensor:
        """Return one sequence per token; a first token, which is not trained, predicts it."""
        return torch.stack([torch.zeros_like(values), values], -1).view(count, 2)

    mask = column(torch.ones_like(policy)).bool()
    held = Experience(
        ids=mask.long(),
        sampled=mask,
        sampler=column(old),
        real=mask,
        loss=mask,
        attention=mask,
        advantages=policy.new_zeros(count),
        reference=column(reference),
        old=column(old),
        totals=Totals(sequences=count, tokens=count, micro_batches=1, max_tokens=1),
    )
    if settings.kl_place == "reward":
        penalty = stages.kl(old, reference, settings.kl_estimator).view(count, 1)
        gains = penalized(penalty.new_zeros(count), penalty, torch.ones_like(penalty), 1.0)
        held = replace(held, advantages=gains, reference=None, old=held.old if weighted else None)
    found = loss_terms(column(policy), held, settings, stages)
    term = found["policy" if settings.kl_place == "reward" else "kl"]
    # of the mean over sequences, and by log-probability of the token
    by_token = count * term.gradient[:, 1].view_as(policy)
    return to_logits(old.exp() * by_token, policy)


@dataclass(frozen=True)
class Agreement:
    """How far a gradient agrees with the right one: 1 and 0 where they are equal."""

    cosine: float
    relative_error: float


def agreement(found: Tensor, right: Tensor) -> Agreement:
    """Return the agreement of two gradients. The cosine of one that is 0, to rounding, is 0."""
    scale = float(found.norm() * right.norm())
    none = float(found.norm()) < 1e-9 * float(right.norm())
    cosine = 0.0 if none else float((found * right).sum()) / scale
    return Agreement(cosine, float((found - right).norm() / right.norm()))


_EXACT = 1e-9


def direction_report(distances: Sequence[float]) -> str:
    """Hold the formula of each estimator, and the formula reversed, to the KL.

    distances: of the policies, as in random_policies.
    """
    lines = []
    for distance in distances:
        found = directions([distance])
        lines.append(f"KL(policy || reference) {found[0].kl:.4g} nats, logits off by {distance:g}")
        for each in found:
            right, wrong = abs(each.right - each.kl), abs(each.reversed - each.kl)
            lines.append(
                f"  {each.estimator}: error {right:.3g} with the formula, {wrong:.3g} with it reversed"
            )
    lines.append(
        "Expectations under the policy, summed over all tokens. k1 and k3 have the KL's; k2 is near "
        "it near the reference, and the same reversed."
    )
    return "\n".join(lines)


def importance_sampling_report(
    distance: float, off_policy: float, settings: TrainingSettings
) -> str:
    """Show the error of every KL term's value and gradient, on policy and off policy.

    distance: of the policy from the reference; off_policy: of the one that sampled from the policy.
    """
    on_policy = terms(distance, 0.0, settings)
    plain = [term for term in on_policy if term.place == "loss" and not term.weighted]
    lines = [
        f"Policy and reference: logits off by {distance:g}. Expectations over all tokens of the policy "
        "that sampled.",
        *("", "On policy"),
        *_table(on_policy),
        *("", f"Off policy: logits of the policy that sampled off by {off_policy:g}"),
        *_table(terms(distance, off_policy, settings)),
        *("", "arXiv 2506.09477, on policy and in the loss, without the ratio:"),
        *(f"  {term.estimator}: {_whose(term)}" for term in plain),
        *_sequences(distance),
    ]
    return "\n".join(lines)


def _table(terms: Sequence[Term]) -> list[str]:
    header = "  estimator  place   ratio   value error  cosine  gradient error"
    rows = (
        f"  {t.estimator:9}  {t.place:6}  {'yes' if t.weighted else 'no':5}"
        f"{abs(t.value_error):>13.1%}{t.gradient.cosine:>8.3f}{t.gradient.relative_error:>16.1%}"
        for t in terms
    )
    return [header, *rows]


def _whose(term: Term) -> str:
    if term.gradient.relative_error < _EXACT:
        return "the gradient is the KL's"
    if term.gradient.cosine == 0:
        return "the gradient is 0 on average: nothing holds the policy"
    other = "that of KL(reference || policy)"
    if term.exchanged.relative_error < _EXACT:
        return f"the gradient is {other}, {term.gradient.relative_error:.1%} off the KL's"
    return f"the gradient is {term.gradient.relative_error:.1%} off the KL's"


def _sequences(distance: float) -> list[str]:
    whole, by_token = sequence_gradients(distance)
    found = agreement(by_token, whole)
    return [
        "and of sequences of two tokens, of which the first decides where the second is drawn:",
        f"  the sum of the tokens' own KL gradients is {found.relative_error:.1%} off that of the "
        f"sequence's KL (cosine {found.cosine:.3f}): what follows a token is left out",
    ]


def kl(policy: Tensor, reference: Tensor) -> Tensor:
    """Return KL(policy || reference) of each state, [S], of log-probabilities, [S, V] each."""
    return (policy.exp() * (policy - reference)).sum(-1)


@dataclass(frozen=True)
class Direction:
    """Means over states, in nats: the KL, and an estimator's expectation with its formula as it is and
    with policy and reference exchanged."""

    distance: float
    estimator: str
    kl: float
    right: float
    reversed: float


def directions(distances: Sequence[float]) -> list[Direction]:
    """Return every estimator's expectation under the policy, and with its formula reversed."""
    reference, *policies = random_policies(distances)
    found = []
    for distance, policy in zip(distances, policies, strict=True):
        exact = float(kl(policy, reference).mean())
        for name in KL_ESTIMATORS:
            right, wrong = (
                float((policy.exp() * kl_estimate(*pair, name)).sum(-1).mean())
                for pair in ((policy, reference), (reference, policy))
            )
            found.append(Direction(distance, name, exact, right, wrong))
    return found


@dataclass(frozen=True)
class Term:
    """A KL term by its place and whether the ratio weights it: the error of its value over the KL, and its
    gradient's agreement with that of the KL and of the KL with its arguments exchanged."""

    estimator: str
    place: str
    weighted: bool
    value_error: float
    gradient: Agreement
    exchanged: Agreement


def terms(distance: float, off_policy: float, settings: TrainingSettings) -> list[Term]:
    """Return every term at a policy this far from the reference, in expectation over the tokens of an old
    policy `off_policy` away. Distances are those of random_policies."""
    reference, step, drift = random_policies([distance, off_policy])
    policy, old = step, (step + (drift - reference)).log_softmax(-1)
    exact, right = kl(policy, reference), kl_gradient(policy, reference)
    forward = reference.exp() * -1.0  # the gradient of KL(reference || policy), by log-probability
    other = to_logits(forward, policy)
    found = []
    for place, name, weighted in product(("loss", "reward"), KL_ESTIMATORS, (False, True)):
        told: dict[str, Any] = {"kl_estimator": name, "kl_place": place}
        case = replace(settings, use_bias_correction_kl=weighted, **told)
        gradient = term_gradient(policy, old, reference, case, Stages(), weighted=weighted)
        tokens = policy.exp() if weighted else old.exp()
        # in the reward the KL is computed once, before the updates
        at = policy if place == "loss" else old
        value = (tokens * kl_estimate(at, reference, name)).sum(-1)
        error = float((value - exact).mean() / exact.mean())
        agreements = agreement(gradient, right), agreement(gradient, other)
        found.append(Term(name, place, weighted, error, *agreements))
    return found


def sequence_gradients(distance: float, tokens: int = 16) -> tuple[Tensor, Tensor]:
    """Return gradients of the KL of sequences of two tokens with respect to the first token's logits, [V]
    each: of the whole, and what is left where each token's KL is taken by itself, in its own state.

    The second token's state is the first token, so that its KL depends on the first's probabilities: a
    term in the loss has no gradient of that (arXiv 2506.09477), a penalty on the reward does.
    """
    reference, policy = random_policies([distance], states=tokens + 1, tokens=tokens)
    first, after = policy[:1], kl(policy, reference)[1:]
    by_token = kl_gradient(first, reference[:1])
    return (by_token + to_logits(first.exp() * after, first))[0], by_token[0]
