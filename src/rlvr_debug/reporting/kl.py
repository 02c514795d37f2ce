"""What the KL term estimates and where its gradient points, on exact policies, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.probes import exact_kl
from rlvr_debug.probes.exact_kl import Term

__all__ = ["direction_report", "importance_sampling_report"]

_EXACT = 1e-9


def direction_report(distances: Sequence[float]) -> str:
    """The formula of each estimator against the KL, and with policy and reference exchanged.

    distances: of the policies, as in exact_kl.random_policies.
    """
    lines = []
    for distance in distances:
        found = exact_kl.directions([distance])
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
    """Every KL term on policy and off policy: its value's error and its gradient's.

    distance: of the policy from the reference; off_policy: of the one that sampled from the policy.
    """
    on_policy = exact_kl.terms(distance, 0.0, settings)
    return "\n".join(
        [
            f"Policy and reference: logits off by {distance:g}. Expectations over all tokens of the policy "
            "that sampled.",
            "",
            "On policy",
            *_table(on_policy),
            "",
            f"Off policy: logits of the policy that sampled off by {off_policy:g}",
            *_table(exact_kl.terms(distance, off_policy, settings)),
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
    whole, by_token = exact_kl.sequence_gradients(distance)
    found = exact_kl.agreement(by_token, whole)
    return [
        "and of sequences of two tokens, of which the first decides where the second is drawn:",
        f"  the sum of the tokens' own KL gradients is {found.relative_error:.1%} off that of the "
        f"sequence's KL (cosine {found.cosine:.3f}): what follows a token is left out",
    ]
