"""Is the first gradient the loss' own, of a size that its advantages explain, and does a step follow it?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lab.probes.base import Measurement, Subject, borrowed, measurement
from lab.probes.first_update import (
    add_gradient,
    advantages_of,
    contrast,
    first_update,
    trained_scores,
)
from rlvr_debug.grpo.optimizer import build_optimizer
from rlvr_debug.grpo.processes import Processes
from rlvr_debug.grpo.update import shared_logprobs
from rlvr_debug.metrics.gradients import loss_terms
from rlvr_debug.metrics.weights import expected_change, weight_change

__all__ = ["gradient_size", "micro_batch_invariance", "weights_move"]

_CUT_ERROR = {"float32": 1e-3, "bfloat16": 0.05}
_RATIO = 0.2
_STEP_ERROR = 0.1


def micro_batch_invariance(subject: Subject) -> Measurement:
    """Is the gradient the same however the batch is cut into micro-batches?

    The gradient of the update, cut as the case cuts it and in 2, against the batch at once. The aggregation
    bnpo is defined per micro-batch: of it, only the case's own cut counts.
    """
    own = subject.settings.gradient_accumulation_steps
    cuts = sorted({own, 2} if subject.settings.aggregation != "bnpo" else {own})
    bound = _CUT_ERROR[subject.precision]
    whole = _gradient(subject, 1)
    norm = float(whole.norm())
    errors = {
        # of a loss that counts nothing, every cut is as good
        f"relative_error_in_{cut}": float((_gradient(subject, cut) - whole).norm()) / (norm or 1.0)
        for cut in cuts
        if cut > 1
    }
    return measurement(
        "micro-batch-invariance",
        {"micro_batches": own, "gradient_norm_of_the_whole": norm, **errors},
        all(error < bound for error in errors.values()),
        error=bound,
    )


def _gradient(subject: Subject, micro_batches: int) -> Tensor:
    """Of all that is trained, in one vector."""
    settings = replace(subject.settings, gradient_accumulation_steps=micro_batches)
    cut = replace(subject, settings=settings)
    with borrowed(subject.policy):
        add_gradient(cut, first_update(cut, contrast(subject)))
        return torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().clone()
                for p in subject.policy.trained
            ]
        )


def gradient_size(subject: Subject) -> Measurement:
    """Is the first gradient of a size that its advantages explain?

    Of the case's loss, with the advantages that its rollouts earned, before clipping. The ratio is that of
    two forward passes of the same policy.
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
    return measurement(
        "gradient-size",
        {
            "gradient_norm": norm,
            "clip_norm": settings.max_grad_norm,
            "share_clipped_away": max(0.0, 1 - settings.max_grad_norm / norm) if norm else 0.0,
            "largest_deviation_of_the_ratio_from_1": deviation,
            "sum_of_logprob_gradients": asked,
            "largest_advantage": largest,
        },
        deviation < _RATIO and asked <= most * (1 + _RATIO) + 1e-6,
        ratio=_RATIO,
        most=most,
    )


def weights_move(subject: Subject) -> Measurement:
    """Does an optimizer step move the weights, as far as AdamW should?

    One step on the case's loss, at the learning rate that follows the warm-up.
    """
    policy, settings = subject.policy, subject.settings
    with borrowed(policy):
        optimizer = build_optimizer(policy.trained, settings)
        add_gradient(subject, first_update(subject, contrast(subject)))
        Processes().clip(policy, settings.max_grad_norm)
        expected = expected_change(policy, optimizer)
        subject.stages.optimizer_step(optimizer)
        change = weight_change(expected, policy)
    norm = change.expected_norm
    relative = {"relative_error": change.error_norm / norm} if norm else {}
    return measurement(
        "weights-move",
        {
            "learning_rate": change.learning_rate,
            "clipped_gradient_norm": change.clipped_norm,
            "update_norm": change.update_norm,
            "expected_update_norm": norm,
            **relative,
            "share_moved": change.moved,
        },
        norm > 0 and change.error_norm < _STEP_ERROR * norm,
        error=_STEP_ERROR,
    )
