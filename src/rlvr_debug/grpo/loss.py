"""The sequences that are trained on, and the loss of GRPO, from the stages that make it up. Axes: B sequences, T tokens."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.objective import Totals
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout


@dataclass(frozen=True)
class Batch:
    """Right-padded sequences. ids: long [B, T]; sampler: float [B, T]; the others bool [B, T].

    sampled: what the model wrote; real: no padding; loss and attention: what the stages made of these.
    """

    ids: Tensor
    sampled: Tensor
    sampler: Tensor
    real: Tensor
    loss: Tensor
    attention: Tensor

    def rows(self, index: Tensor) -> "Batch":
        """Return these rows, cut to the longest of them. index: [b]."""
        width = int(self.real[index].sum(1).max())
        return Batch(*(getattr(self, field.name)[index][:, :width] for field in fields(self)))


def trained_sequence(
    rollout: Rollout, stages: Stages, environment: Environment, chat: Chat
) -> tuple[list[int], list[bool]]:
    """Return ids [T] and which of them were sampled [T]. Sampled ids always stand as they are."""
    ids: list[int] = []
    sampled: list[bool] = []
    for segment in rollout.segments:
        if segment.role == "prompt":
            new = stages.trained_prompt(rollout, segment, environment, chat)
        elif segment.role == "tool":
            new = stages.trained_tool_turn(segment, chat)
        else:
            new = segment.ids
        ids += new
        sampled += [segment.role == "assistant"] * len(new)
    return ids, sampled


def build_batch(
    rollouts: list[Rollout],
    stages: Stages,
    environment: Environment,
    chat: Chat,
    *,
    mask_truncated: bool = False,
) -> Batch:
    """Return what the stages make of the rollouts; mask_truncated leaves those that the token limit cut out of the loss."""
    sequences = [trained_sequence(rollout, stages, environment, chat) for rollout in rollouts]
    ids = pad_sequence([torch.tensor(tokens) for tokens, _ in sequences], batch_first=True)
    sampled = pad_sequence([torch.tensor(mask) for _, mask in sequences], batch_first=True)
    lengths = torch.tensor([len(tokens) for tokens, _ in sequences])
    real = torch.arange(ids.shape[1]) < lengths[:, None]
    sampler = torch.zeros(ids.shape)
    sampler[sampled] = torch.tensor([x for r in rollouts for s in r.segments for x in s.logprobs])
    loss = stages.loss_mask(sampled, real)
    if mask_truncated:
        truncated = torch.tensor([rollout.outcome == "token_limit" for rollout in rollouts])
        loss = without_truncated(loss, truncated)
    return Batch(ids, sampled, sampler, real, loss, stages.attention_mask(sampled, real))


def without_truncated(mask: Tensor, truncated: Tensor) -> Tensor:
    """Return `mask`, [B, T], without the sequences that the token limit cut, [B] (arXiv 2503.14476, section 3.4)."""
    return mask & ~truncated[:, None]


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

    def rows(self, index: Tensor, width: int) -> "Targets":
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

    def rows(self, index: Tensor) -> "Experience":
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
