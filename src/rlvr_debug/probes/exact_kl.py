"""The KL term on exact policies: tables of logits over a few tokens, where an expectation is a sum.

No sample and no model: what is left of an error is the formula's. States are independent of each other,
but in `sequence_gradients`.

Axes: S states, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlvr_debug.diagnostics.gradients import loss_terms
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.kl import KL_ESTIMATORS, KL_PLACES, kl_estimate, penalized
from rlvr_debug.grpo.loss import Targets
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages

__all__ = [
    "Agreement",
    "Direction",
    "Term",
    "agreement",
    "directions",
    "kl",
    "kl_gradient",
    "random_policies",
    "sequence_gradients",
    "term_gradient",
    "terms",
]


def random_policies(distances: Sequence[float], states: int = 64, tokens: int = 16) -> list[Tensor]:
    """Log-probabilities [S, V], in float64, the same at each call: a random policy, then policies whose
    logits differ from its by noise of these standard deviations."""
    generator = torch.Generator().manual_seed(0)

    def noise() -> Tensor:
        return torch.randn(states, tokens, generator=generator, dtype=torch.float64)

    first = noise()
    return [
        first.log_softmax(-1),
        *((first + distance * noise()).log_softmax(-1) for distance in distances),
    ]


def kl(policy: Tensor, reference: Tensor) -> Tensor:
    """KL(policy || reference) of each state, [S]. Log-probabilities, [S, V] each."""
    return (policy.exp() * (policy - reference)).sum(-1)


def kl_gradient(policy: Tensor, reference: Tensor) -> Tensor:
    """Of the KL with respect to the policy's logits, [S, V]."""
    return _to_logits(policy.exp() * (policy - reference), policy)


def _to_logits(weights: Tensor, policy: Tensor) -> Tensor:
    """Gradient of sum(weights * log p) with respect to the logits; the weights are constants. [S, V]."""
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
    """What the trainer's KL term adds to the gradient of the logits, in expectation over tokens of
    `old`: [S, V], as are the log-probabilities.

    At beta 1, from the trainer's own loss. In the reward the term is a score function: minus the
    penalty is the advantage of its token. weighted: there, by the ratio of policy to old (without a
    clip), as what PPO's objective does; in the loss it is use_bias_correction_kl that says so.
    """
    count = policy.numel()
    settings = replace(settings, kl_beta=1.0, clip=1.0, epsilon_high=float("inf"), delta=0.0)

    def column(values: Tensor) -> Tensor:
        """One sequence per token; a first token, which is not trained, predicts it."""
        return torch.stack([torch.zeros_like(values), values], -1).view(count, 2)

    mask = column(torch.ones_like(policy)).bool()
    held = Targets(policy.new_zeros(count), mask, mask, column(old), column(reference), column(old))
    if settings.kl_place == "reward":
        penalty = stages.kl(old, reference, settings.kl_estimator).view(count, 1)
        gains = penalized(penalty.new_zeros(count), penalty, torch.ones_like(penalty), 1.0)
        held = replace(held, advantages=gains, reference=None, old=held.old if weighted else None)
    totals = Totals(sequences=count, tokens=count, micro_batches=1, max_tokens=1)
    found = loss_terms(column(policy), held, totals, settings, stages)
    term = found["policy" if settings.kl_place == "reward" else "kl"]
    # of the mean over sequences, and by log-probability of the token
    by_token = count * term.gradient[:, 1].view_as(policy)
    return _to_logits(old.exp() * by_token, policy)


@dataclass(frozen=True)
class Agreement:
    """Of a gradient with the right one: 1 and 0 where they are equal."""

    cosine: float
    relative_error: float


def agreement(found: Tensor, right: Tensor) -> Agreement:
    """The cosine with a gradient that is 0, to rounding, is 0."""
    scale = float(found.norm() * right.norm())
    none = float(found.norm()) < 1e-9 * float(right.norm())
    cosine = 0.0 if none else float((found * right).sum()) / scale
    return Agreement(cosine, float((found - right).norm() / right.norm()))


@dataclass(frozen=True)
class Direction:
    """Means over states of the KL and of an estimator's expectation, of policy from reference and with
    the two exchanged in the formula, nats."""

    distance: float
    estimator: str
    kl: float
    right: float
    reversed: float


def directions(distances: Sequence[float]) -> list[Direction]:
    """Every estimator's expectation under the policy, and with its formula reversed."""
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
    """Of a KL term, by where it is and whether the ratio weights it: the error of its value over the
    KL, and its gradient's agreement with that of the KL and of the KL with its arguments exchanged.
    """

    estimator: str
    place: str
    weighted: bool
    value_error: float
    gradient: Agreement
    exchanged: Agreement


def terms(distance: float, off_policy: float, settings: TrainingSettings) -> list[Term]:
    """Every term at a policy this far from the reference, in expectation over the tokens of an old
    policy `off_policy` away. Distances are those of random_policies."""
    reference, step, drift = random_policies([distance, off_policy])
    policy, old = step, (step + (drift - reference)).log_softmax(-1)
    exact, right = kl(policy, reference), kl_gradient(policy, reference)
    forward = reference.exp() * -1.0  # the gradient of KL(reference || policy), by log-probability
    other = _to_logits(forward, policy)
    found = []
    for place in KL_PLACES:
        for name in KL_ESTIMATORS:
            for weighted in (False, True):
                case = replace(
                    settings, kl_estimator=name, kl_place=place, use_bias_correction_kl=weighted
                )
                gradient = term_gradient(policy, old, reference, case, Stages(), weighted=weighted)
                tokens = policy.exp() if weighted else old.exp()
                # in the reward the KL is computed once, before the updates
                at = policy if place == "loss" else old
                value = (tokens * kl_estimate(at, reference, name)).sum(-1)
                found.append(
                    Term(
                        name,
                        place,
                        weighted,
                        float((value - exact).mean() / exact.mean()),
                        agreement(gradient, right),
                        agreement(gradient, other),
                    )
                )
    return found


def sequence_gradients(distance: float, tokens: int = 16) -> tuple[Tensor, Tensor]:
    """Gradients of the KL of sequences of two tokens with respect to the first token's logits, [V] each:
    of the whole, and what is left where each token's KL is taken by itself, in the state that it is in.

    The second token's state is the first token, so that its KL depends on the first's probabilities: a
    term in the loss has no gradient of that (arXiv 2506.09477), a penalty on the reward does.
    """
    reference, policy = random_policies([distance], states=tokens + 1, tokens=tokens)
    first, after = policy[:1], kl(policy, reference)[1:]
    by_token = kl_gradient(first, reference[:1])
    return (by_token + _to_logits(first.exp() * after, first))[0], by_token[0]
