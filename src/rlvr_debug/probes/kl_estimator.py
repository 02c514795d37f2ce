"""Is the KL stage's expectation the KL divergence, in the right direction?"""

from __future__ import annotations

import torch

from rlvr_debug.probes.base import Measurement, Subject

__all__ = ["kl_estimator"]

_BOUND = 1e-4


def kl_estimator(subject: Subject) -> Measurement:
    """On random policies over 16 tokens, where the expectation is a sum and not an estimate."""
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
    return Measurement(
        probe="kl-estimator",
        measured={"max_error": error, "mean_kl": float(analytic.mean())},
        bound=f"error below {_BOUND} nats",
        reason="k1 and k3 are unbiased: their expectation under the policy is KL(policy || reference), "
        "that of k2 half the mean square of log(policy / reference), here summed over all tokens",
        passed=error < _BOUND,
    )
