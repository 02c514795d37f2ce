"""Is the first gradient of a size that its advantages explain?"""

from __future__ import annotations

import torch

from rlvr_debug.diagnostics.gradients import loss_terms
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.update import shared_logprobs
from rlvr_debug.probes.base import Measurement, Subject, borrowed
from rlvr_debug.probes.first_update import (
    add_gradient,
    advantages_of,
    first_update,
    trained_scores,
)

__all__ = ["gradient_size"]

_RATIO = 0.2


def gradient_size(subject: Subject) -> Measurement:
    """Of the case's loss, with the advantages that its rollouts earned, before clipping.

    The ratio is that of two forward passes of the same policy.
    """
    settings, stages = subject.settings, subject.stages
    advantages = advantages_of(subject, *trained_scores(subject))
    update = first_update(subject, stages.assign(advantages))
    with borrowed(subject.policy):
        old = add_gradient(subject, update)
        norm = Processes().clip(subject.policy, settings.max_grad_norm)
    again = shared_logprobs(subject.model, update.batch, settings, stages, Processes())
    mask = update.batch.loss.to(old.dtype)
    ratio = stages.importance_ratio(again, old, mask, settings.importance_sampling_level)
    deviation = float((ratio - 1).abs().max())
    terms = loss_terms(again, update.targets, update.totals, settings, stages, subject.loss)
    asked = float(torch.stack([term.gradient for term in terms.values()]).sum(0).abs().sum())
    largest = float(advantages.abs().max())
    most = largest * max(1.0, settings.importance_sampling_cap) + settings.kl_beta
    return Measurement(
        probe="gradient-size",
        measured={
            "gradient_norm": norm,
            "clip_norm": settings.max_grad_norm,
            "share_clipped_away": max(0.0, 1 - settings.max_grad_norm / norm) if norm else 0.0,
            "largest_deviation_of_the_ratio_from_1": deviation,
            "sum_of_logprob_gradients": asked,
            "largest_advantage": largest,
        },
        bound=f"ratios within {_RATIO:.0%} of 1; the loss' gradient with respect to log-probabilities, "
        f"in sum of sizes, at most the largest advantage (and beta): {most:.3g}",
        reason="old and new policy are one, in bfloat16 to within the usual clip range. At ratio 1 the loss is a mean of advantages, so that its "
        "gradient weighs log-probabilities by no more than the largest, however large the model "
        "makes the norm. A clip that acts is ordinary: AdamW does not see the gradient's scale",
        passed=deviation < _RATIO and asked <= most * (1 + _RATIO) + 1e-6,
    )
