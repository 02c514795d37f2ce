"""Is the sampler's policy the trainer's, before an update and after one?"""

from __future__ import annotations

from typing import Any

import torch

from lab.probes.base import Measurement, Subject, borrowed, measurement, shift_weights
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.update import batch_logprobs
from rlvr_debug.metrics.logprobs import sampler_metrics
from rlvr_debug.sampling.rollouts import rollout

__all__ = ["KL_BOUND", "OUTSIDE", "sampler_gap", "sampler_ratio", "weight_sync"]

KL_BOUND = {"float32": 1e-5, "bfloat16": 1e-3}
OUTSIDE = 0.01
_GAP = 1e-5
_STEP = 1e-2


def sampler_ratio(subject: Subject) -> Measurement:
    """With no update made, do trainer and sampler give the same probability to what was sampled?

    The case's log-probabilities, in its precision and at its temperature, of the sequences as they
    were sampled and with all of them to be seen: other probes look at those that are trained.
    """
    batch = build_batch(subject.rollouts, Stages(), subject.environment, subject.chat)
    with torch.no_grad():
        trainer = batch_logprobs(subject.model, batch, subject.settings, subject.stages)
    found = sampler_metrics(trainer[batch.sampled].float(), batch.sampler[batch.sampled])
    bound = KL_BOUND[subject.precision]
    ratio = "sampling/importance_sampling_ratio"
    kl, outside = found["sampler_gap/kl"], found[f"{ratio}/outside_10_percent"]
    return measurement(
        "sampler-ratio",
        {
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
        kl < bound and outside <= OUTSIDE,
        kl=bound,
        outside=OUTSIDE,
    )


def weight_sync(subject: Subject) -> Measurement:
    """After an update, does the sampler follow the trainer's new weights?

    Move the model by a random step, sync, and compare it and what it was with the sampler.
    """
    temperature = subject.settings.temperature
    rows = [r.row for r in subject.rollouts[:: subject.settings.group_size]]
    held = subject.sampler.weights()
    with borrowed(subject.policy):
        shift_weights(subject.policy, _STEP)
        subject.stages.sync(subject.policy, subject.sampler)
        subject.sampler.reset()
        rollouts = rollout(
            rows,
            subject.environment,
            subject.chat,
            subject.sampler,
            temperature=temperature,
            seed=0,
        )
        batch = build_batch(rollouts, Stages(), subject.environment, subject.chat)
        gap_to_new = sampler_gap(subject.model, batch, temperature)
    subject.sampler.load(held)
    gap_to_old = sampler_gap(subject.model, batch, temperature)
    return measurement(
        "weight-sync",
        {"gap_to_new_weights": gap_to_new, "gap_to_old_weights": gap_to_old},
        gap_to_new < _GAP < gap_to_old,
        gap=_GAP,
    )


@torch.no_grad()
def sampler_gap(model: Any, batch: Batch, temperature: float) -> float:
    """Return the mean absolute difference of the model's log-probabilities from the sampler's, nats."""
    logprobs = token_logprobs(model, batch.ids, batch.real, batch.sampled, temperature)
    return float((logprobs - batch.sampler)[batch.sampled].abs().mean())
