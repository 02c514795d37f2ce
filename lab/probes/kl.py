"""Is the KL term that of the KL divergence, in value and in gradient?"""

from __future__ import annotations

import torch

from lab.probes import exact_kl
from lab.probes.base import Measurement, Subject, measurement

__all__ = ["kl_estimator", "kl_gradient"]

_NATS = 1e-4
_NEAR, _FAR = 0.1, 1.0
_COSINE = 0.9
_ERROR = 0.5


def kl_estimator(subject: Subject) -> Measurement:
    """Is the KL stage's expectation the KL divergence, in the right direction?

    On random policies over 16 tokens, where the expectation is a sum and not an estimate.
    """
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(
        2, 64, 16, generator=generator, dtype=torch.float64
    ).log_softmax(-1)
    estimator, difference = subject.settings.kl_estimator, policy - reference
    # k2 estimates half the second moment, which is near the divergence where that is small
    estimated = difference.square() / 2 if estimator == "k2" else difference
    analytic = (policy.exp() * estimated).sum(-1)
    expected = (policy.exp() * subject.stages.kl(policy, reference, estimator)).sum(-1)
    error = float((expected - analytic).abs().max())
    return measurement(
        "kl-estimator",
        {"max_error": error, "mean_kl": float(analytic.mean())},
        error < _NATS,
        error=_NATS,
    )


def kl_gradient(subject: Subject) -> Measurement:
    """Does the KL term, as the trainer uses it, pull the policy towards the reference?

    Its expected gradient, enumerated over all tokens of policies near the reference and far from it,
    by the case's estimator, place and weighting. On policy, as the first update is.
    """
    settings = subject.settings
    reference, *policies = exact_kl.random_policies([_NEAR, _FAR])
    near, far = (
        exact_kl.agreement(
            exact_kl.term_gradient(policy, policy, reference, settings, subject.stages),
            exact_kl.kl_gradient(policy, reference),
        )
        for policy in policies
    )
    return measurement(
        "kl-gradient",
        {
            "beta": settings.kl_beta,
            "cosine_near": near.cosine,
            "relative_error_near": near.relative_error,
            "cosine_far": far.cosine,
            "relative_error_far": far.relative_error,
        },
        not settings.kl_beta or (near.cosine > _COSINE and near.relative_error < _ERROR),
        near=_NEAR,
        cosine=_COSINE,
        error=_ERROR,
    )
