"""Is the loss' gradient with respect to the log-probabilities the right one?

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lab.probes.base import Measurement, Subject
from lab.probes.first_update import case_batch
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Targets, policy_loss
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.metrics.gradients import loss_terms

__all__ = ["loss_gradient"]

_AGGREGATIONS = ("bnpo", "dr_grpo", "grpo")
_BETAS = (0.0, 0.04)
_APART = 0.3
_ERROR = 1e-6


def loss_gradient(
    subject: Subject, aggregations: Sequence[str] = _AGGREGATIONS, *, updates: bool = True
) -> Measurement:
    """Compare the gradient with that of grpo/loss.py with its own stages.

    Log-probabilities, advantages, old and reference policies are random; the loss mask is the batch's.
    aggregations: those that the trainer knows; updates: whether it makes several updates of a batch, so
    that there is an old policy.
    """
    batch = case_batch(subject)
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    count, width = batch.ids.shape
    logprobs = -noise(count, width).abs()
    old, reference = (logprobs + _APART * noise(count, width) for _ in range(2))
    targets = Targets(noise(count), batch.loss, batch.sampled, batch.sampler.double(), None, None)
    if updates:
        targets = replace(targets, old=old)
    totals = Totals(count, int(batch.loss.sum()), micro_batches=1, max_tokens=width)
    errors = {}
    for aggregation in aggregations:
        for beta in _BETAS:
            told: dict[str, Any] = {"aggregation": aggregation, "kl_beta": beta, "kl_place": "loss"}
            settings = replace(subject.settings, **told)
            held = replace(targets, reference=reference if beta else None)
            terms = (
                loss_terms(logprobs, held, totals, settings, *which).values()
                for which in ((subject.stages, subject.loss), (Stages(), policy_loss))
            )
            found, right = (torch.stack([t.gradient for t in each]).sum(0) for each in terms)
            errors[f"error_{aggregation}_beta_{beta:g}"] = float(
                (found - right).norm() / right.norm()
            )
    return Measurement(
        probe="loss-gradient",
        measured=errors,
        bound=f"relative error below {_ERROR}",
        reason="both are given the same log-probabilities in float64, so that rounding makes 1e-15, and "
        "the loss that is held against is the one that tests hold to TRL's",
        passed=all(error < _ERROR for error in errors.values()),
    )
