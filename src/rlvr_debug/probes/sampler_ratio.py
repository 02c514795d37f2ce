"""With no update made, do trainer and sampler give the same probability to what was sampled?"""

from __future__ import annotations

import torch

from rlvr_debug.diagnostics.logprobs import sampler_metrics
from rlvr_debug.grpo.sequences import build_batch
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.update import batch_logprobs
from rlvr_debug.probes.base import Measurement, Subject

__all__ = ["KL_BOUND", "OUTSIDE", "sampler_ratio"]

KL_BOUND = {"float32": 1e-5, "bfloat16": 1e-3}
OUTSIDE = 0.01


def sampler_ratio(subject: Subject) -> Measurement:
    """The case's log-probabilities, in its precision and at its temperature, of the sequences as they
    were sampled and with all of them to be seen: other probes look at those that are trained."""
    batch = build_batch(subject.rollouts, Stages(), subject.environment, subject.chat)
    with torch.no_grad():
        trainer = batch_logprobs(subject.model, batch, subject.settings, subject.stages)
    found = sampler_metrics(trainer[batch.sampled].float(), batch.sampler[batch.sampled])
    bound = KL_BOUND[subject.precision]
    ratio = "sampling/importance_sampling_ratio"
    kl, outside = found["sampler_gap/kl"], found[f"{ratio}/outside_10_percent"]
    return Measurement(
        probe="sampler-ratio",
        measured={
            "kl_k3": kl,
            "outside_10_percent": outside,
            **{
                f"ratio_{q}": found[f"{ratio}/{q}"]
                for q in ("mean", "min", "p01", "p50", "p99", "max")
            },
            "gap_mean": found["sampler_gap/mean_abs"],
            "gap_p99": found["sampler_gap/abs/p99"],
            "gap_max": found["sampler_gap/max_abs"],
        },
        bound=f"KL of the sampler from the trainer (k3) below {bound} nats; at most {OUTSIDE:.0%} of "
        "the ratios outside [0.9, 1.1]",
        reason="at the same weights the ratio is 1 but for rounding: 1e-5 in float32, which is a KL of "
        "1e-12, and a few per cent on rare tokens in bfloat16, 1e-4; a temperature of 0.9 that one "
        "of both ignores is 1e-3",
        passed=kl < bound and outside <= OUTSIDE,
    )
