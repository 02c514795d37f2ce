"""Does the KL term, as the trainer uses it, pull the policy towards the reference?"""

from __future__ import annotations

from rlvr_debug.probes import exact_kl
from rlvr_debug.probes.base import Measurement, Subject

__all__ = ["kl_gradient"]

_NEAR, _FAR = 0.1, 1.0
_COSINE = 0.9
_ERROR = 0.5


def kl_gradient(subject: Subject) -> Measurement:
    """Its expected gradient, enumerated over all tokens of policies near the reference and far from it,
    by the case's estimator, place and weighting. On policy, as the first update is."""
    settings = subject.settings
    reference, *policies = exact_kl.random_policies([_NEAR, _FAR])
    near, far = (
        exact_kl.agreement(
            exact_kl.term_gradient(policy, policy, reference, settings, subject.stages),
            exact_kl.kl_gradient(policy, reference),
        )
        for policy in policies
    )
    return Measurement(
        probe="kl-gradient",
        measured={
            "beta": settings.kl_beta,
            "cosine_near": near.cosine,
            "relative_error_near": near.relative_error,
            "cosine_far": far.cosine,
            "relative_error_far": far.relative_error,
        },
        bound=f"near the reference (logits off by {_NEAR}) a cosine above {_COSINE} and a relative "
        f"error below {_ERROR}, unless beta is 0",
        reason="k2 in the loss, k1 in the reward, and k1 or k3 in the loss weighted by the ratio have "
        "the KL's gradient. k3 in the loss has that of KL(reference || policy) (arXiv 2506.09477): "
        "biased, and near the reference the same to first order. k1 in the loss has none on average, "
        "k2 and k3 in the reward one of second order: they hold nothing",
        passed=not settings.kl_beta or (near.cosine > _COSINE and near.relative_error < _ERROR),
    )
