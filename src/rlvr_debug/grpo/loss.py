"""The loss of GRPO, from the stages that make it up, and what it is computed from. Axes: B sequences, T tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from rlvr_debug.grpo.objective import Totals
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages


@dataclass(frozen=True)
class Targets:
    """What the policy's log-probabilities are held against: advantages [B], masks and log-probabilities [B, T].

    reference: None unless the KL is in the loss; old: the policy's before the batch's first update, None at that update.
    """

    advantages: Tensor
    mask: Tensor
    sampled: Tensor
    sampler: Tensor
    reference: Tensor | None
    old: Tensor | None

    def rows(self, index: Tensor, width: int) -> Targets:
        """Return these rows, cut to this width."""
        advantages, *others = (getattr(self, field.name) for field in fields(self))
        cut: list[Any] = [None if t is None else t[index][:, :width] for t in others]
        return Targets(advantages[index], *cut)


@dataclass(frozen=True)
class Experience:
    """A batch or a part of one, what its log-probabilities are held against, and the whole batch's denominators."""

    batch: Batch
    targets: Targets
    totals: Totals

    def rows(self, index: Tensor) -> Experience:
        """Return these rows, cut to the longest of them. index: [b]."""
        batch = self.batch.rows(index)
        return Experience(batch, self.targets.rows(index, batch.ids.shape[1]), self.totals)


def policy_loss(
    logprobs: Tensor, targets: Targets, totals: Totals, settings: TrainingSettings, stages: Stages
) -> Tensor:
    """Return GRPO's clipped objective, negated, plus kl_beta times the KL: a scalar. logprobs: [B, T].

    arXiv 2402.03300, equation 3; weighted by the ratio, the KL has the gradient of the KL (arXiv 2512.02556).
    """
    old = logprobs.detach() if targets.old is None else targets.old
    mask = targets.mask.to(logprobs.dtype)
    ratio = stages.importance_ratio(logprobs, old, mask, settings.importance_sampling_level)
    per_token = -stages.clipped_objective(
        ratio, targets.advantages, settings.clip, settings.epsilon_high, settings.delta
    )
    if settings.importance_sampling_cap:
        per_token = per_token * stages.importance_weights(
            old, targets.sampler, targets.sampled, settings.importance_sampling_cap
        )
    if targets.reference is not None:
        kl = stages.kl(logprobs, targets.reference, settings.kl_estimator)
        if settings.use_bias_correction_kl:
            kl = kl * ratio
        per_token = per_token + settings.kl_beta * kl
    return stages.aggregate(per_token, mask, totals, settings.aggregation)


# log-probabilities [B, T] and what they are held against -> a scalar, as policy_loss
Loss = Callable[[Tensor, Targets, Totals, TrainingSettings, Stages], Tensor]
