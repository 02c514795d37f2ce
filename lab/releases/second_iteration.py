"""Is a batch that a release uses again held against the policy that it was prepared by?

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lab.probes.base import Measurement
from rlvr_debug.grpo.aggregation import Totals
from rlvr_debug.grpo.loss import Targets, policy_loss
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages

__all__ = ["second_iteration"]

_APART = 0.3  # log-probabilities of two policies, nats
_ERROR = 1e-6


def second_iteration(
    mask: Tensor,
    prepared: Callable[[Tensor, Tensor], Any],
    loss: Callable[[Any, Tensor, int], Tensor],
    settings: TrainingSettings,
) -> Measurement:
    """Hold the gradient of the release's loss, at another policy than prepared the batch, to ours.

    mask: the tokens that the loss counts, [B, T]; prepared: makes the release's inputs of advantages, [B],
    and the log-probabilities of the policy that prepares the batch, [B, T]; loss: makes the loss of these
    inputs, the log-probabilities of another policy, [B, T], and the number of tokens of a sequence.
    """
    generator = torch.Generator().manual_seed(0)
    count, width = mask.shape
    now = -torch.randn(count, width, generator=generator, dtype=torch.float64).abs()
    old = now + _APART * torch.randn(count, width, generator=generator, dtype=torch.float64)
    gains = torch.randn(count, generator=generator, dtype=torch.float64)
    targets = Targets(gains, mask, mask, old, None, old)
    totals = Totals(count, int(mask.sum()), micro_batches=1, max_tokens=width)
    inputs = prepared(gains, old)
    leaf = now.requires_grad_()
    losses = (
        loss(inputs, leaf, width),
        policy_loss(leaf, targets, totals, settings, Stages()),
    )
    found, right = (torch.autograd.grad(each, leaf)[0] for each in losses)
    error = float((found - right).norm() / right.norm())
    return Measurement(
        probe="second-iteration",
        measured={"relative_error": error},
        bound=f"relative error of the loss' gradient below {_ERROR}",
        reason="from the second iteration on, the ratio of the policy to the one that the batch was "
        "prepared by is not 1, and what clips it. With num_iterations 1, the default, there is none",
        passed=error < _ERROR,
    )
