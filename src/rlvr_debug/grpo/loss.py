"""The sequences that are trained on, and the loss of GRPO, from the stages that make it up. Axes: B sequences, T tokens."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

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

    def rows(self, index: Tensor, width: int = 0) -> Self:
        """Return these rows, [b], cut to this width, without one to the longest of them."""
        width = width or int(self.real[index].sum(1).max())
        cut = {
            name: each[index][:, :width] if each.dim() > 1 else each[index]
            for name, each in vars(self).items()
            if isinstance(each, Tensor)
        }
        return replace(self, **cut)


@dataclass(frozen=True)
class Experience(Batch):
    """A batch or a part of one, its advantages [B], what its log-probabilities are held against, and the whole batch's denominators.

    reference: None unless the KL is in the loss; old: the policy's before the batch's first update, None at that update.
    """

    advantages: Tensor
    reference: Tensor | None
    old: Tensor | None
    totals: Totals


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
        loss = without_truncated(loss, rollouts)
    return Batch(ids, sampled, sampler, real, loss, stages.attention_mask(sampled, real))


def without_truncated(mask: Tensor, rollouts: list[Rollout]) -> Tensor:
    """Return `mask`, [B, T], without the rollouts that the token limit cut (arXiv 2503.14476, section 3.4)."""
    return mask & torch.tensor([[rollout.outcome != "token_limit"] for rollout in rollouts])


def policy_loss(
    logprobs: Tensor, held: Experience, settings: TrainingSettings, stages: Stages
) -> Tensor:
    """Return GRPO's clipped objective, negated, plus kl_beta times the KL: a scalar. logprobs: [B, T].

    arXiv 2402.03300, equation 3; weighted by the ratio, the KL has the gradient of the KL (arXiv 2512.02556).
    """
    old = logprobs.detach() if held.old is None else held.old
    mask = held.loss.to(logprobs.dtype)
    ratio = stages.importance_ratio(logprobs, old, mask, settings.importance_sampling_level)
    per_token = -stages.clipped_objective(
        ratio, held.advantages, settings.clip, settings.epsilon_high, settings.delta
    )
    if settings.importance_sampling_cap:
        per_token = per_token * stages.importance_weights(
            old, held.sampler, held.sampled, settings.importance_sampling_cap
        )
    if held.reference is not None:
        kl = stages.kl(logprobs, held.reference, settings.kl_estimator)
        if settings.use_bias_correction_kl:
            kl = kl * ratio
        per_token = per_token + settings.kl_beta * kl
    return stages.aggregate(per_token, mask, held.totals, settings.aggregation)


# log-probabilities [B, T] and what they are held against -> a scalar, as policy_loss
Loss = Callable[[Tensor, Experience, TrainingSettings, Stages], Tensor]
