"""Is the gradient the same however the batch is cut into micro-batches?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rlvr_debug.probes.base import Measurement, Subject, borrowed
from rlvr_debug.probes.first_update import add_gradient, contrast, first_update

__all__ = ["micro_batch_invariance"]

_ERROR = {"float32": 1e-3, "bfloat16": 0.05}


def micro_batch_invariance(subject: Subject) -> Measurement:
    """The gradient of the update, cut as the case cuts it and in 2, against the batch at once.

    The aggregation bnpo is defined per micro-batch: of it, only the case's own cut counts.
    """
    own = subject.settings.gradient_accumulation_steps
    cuts = sorted({own, 2} if subject.settings.aggregation != "bnpo" else {own})
    bound = _ERROR[subject.precision]
    whole = _gradient(subject, 1)
    norm = float(whole.norm())
    errors = {
        # of a loss that counts nothing, every cut is as good
        f"relative_error_in_{cut}": float((_gradient(subject, cut) - whole).norm()) / (norm or 1.0)
        for cut in cuts
        if cut > 1
    }
    return Measurement(
        probe="micro-batch-invariance",
        measured={
            "micro_batches": own,
            "gradient_norm_of_the_whole": norm,
            **errors,
        },
        bound=f"relative error of the gradient below {bound}",
        reason="the loss is one of the whole batch, a sum over its sequences, so that its cuts only add "
        "up in another order: 1e-5 in float32, 1e-2 in bfloat16; the denominators of micro-batches are others by far",
        passed=all(error < bound for error in errors.values()),
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
