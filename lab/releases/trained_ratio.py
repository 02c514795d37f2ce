"""With no update made, does the trainer give what it trains on the probability that it was sampled with?"""

from __future__ import annotations

import torch

from lab.probes.base import Measurement, Subject
from lab.probes.first_update import case_batch
from lab.probes.sampler import KL_BOUND, OUTSIDE
from rlvr_debug.grpo.update import batch_logprobs
from rlvr_debug.metrics.logprobs import sampler_metrics

__all__ = ["trained_ratio"]


def trained_ratio(subject: Subject) -> Measurement:
    """Measure what sampler-ratio does, but of the sequences and masks that are trained on."""
    batch = case_batch(subject)
    counted = batch.loss & batch.sampled
    with torch.no_grad():
        trainer = batch_logprobs(subject.model, batch, subject.settings, subject.stages)
    found = sampler_metrics(trainer[counted].float(), batch.sampler[counted])
    bound = KL_BOUND[subject.precision]
    kl = found["sampler_gap/kl"]
    outside = found["sampling/importance_sampling_ratio/outside_10_percent"]
    return Measurement(
        probe="trained-ratio",
        measured={
            "kl_k3": kl,
            "outside_10_percent": outside,
            "gap_mean": found["sampler_gap/mean_abs"],
            "gap_max": found["sampler_gap/max_abs"],
        },
        bound=f"KL of the sampler from the trainer (k3) below {bound} nats; at most {OUTSIDE:.0%} of "
        "the ratios outside [0.9, 1.1]",
        reason="the same weights read the same tokens, so that the ratio is 1 but for rounding; another "
        "sequence or another mask makes it another policy",
        passed=kl < bound and outside <= OUTSIDE,
    )
