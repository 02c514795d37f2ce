"""What the KL term estimates and where its gradient points, on exact policies, as text.

No sample and no model is used: an expectation is a sum over the tokens of a table of logits.
Axes: S states, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lab.exact_kl import (
    Agreement,
    agreement,
    kl_gradient,
    random_policies,
    term_gradient,
    to_logits,
)
from rlvr_debug.grpo.objective import KL_ESTIMATORS, kl_estimate
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages

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
    return "\n".join(
        [
            *lines,
            "Expectations under the policy, summed over all tokens. k1 and k3 have the KL's; k2 is near "
            "it near the reference, and the same reversed.",
        ]
    )


def importance_sampling_report(
    distance: float, off_policy: float, settings: TrainingSettings
) -> str:
    """Show the error of every KL term's value and gradient, on policy and off policy.

    distance: of the policy from the reference; off_policy: of the one that sampled from the policy.
    """
    on_policy = terms(distance, 0.0, settings)
    return "\n".join(
        [
            f"Policy and reference: logits off by {distance:g}. Expectations over all tokens of the policy "
            "that sampled.",
            "",
            "On policy",
            *_table(on_policy),
            "",
            f"Off policy: logits of the policy that sampled off by {off_policy:g}",
            *_table(terms(distance, off_policy, settings)),
            "",
            "arXiv 2506.09477, on policy and in the loss, without the ratio:",
            *_pitfalls([t for t in on_policy if t.place == "loss" and not t.weighted]),
            *_sequences(distance),
        ]
    )


def _table(terms: Sequence[Term]) -> list[str]:
    header = "  estimator  place   ratio   value error  cosine  gradient error"
    return [
        header,
        *(
            f"  {t.estimator:9}  {t.place:6}  {'yes' if t.weighted else 'no':5}"
            f"{abs(t.value_error):>13.1%}{t.gradient.cosine:>8.3f}{t.gradient.relative_error:>16.1%}"
            for t in terms
        ),
    ]


def _pitfalls(terms: Sequence[Term]) -> list[str]:
    return [f"  {term.estimator}: {_whose(term)}" for term in terms]


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
    for place in ("loss", "reward"):
        for name in KL_ESTIMATORS:
            for weighted in (False, True):
                told: dict[str, Any] = {"kl_estimator": name, "kl_place": place}
                case = replace(settings, use_bias_correction_kl=weighted, **told)
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
    """Return gradients of the KL of sequences of two tokens with respect to the first token's logits, [V]
    each: of the whole, and what is left where each token's KL is taken by itself, in its own state.

    The second token's state is the first token, so that its KL depends on the first's probabilities: a
    term in the loss has no gradient of that (arXiv 2506.09477), a penalty on the reward does.
    """
    reference, policy = random_policies([distance], states=tokens + 1, tokens=tokens)
    first, after = policy[:1], kl(policy, reference)[1:]
    by_token = kl_gradient(first, reference[:1])
    return (by_token + to_logits(first.exp() * after, first))[0], by_token[0]
