"""Rollouts -> the padded tensors that the update reads, rebuilt through stages that may train on other sequences."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.environments.base import Environment
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

    def rows(self, index: Tensor) -> Batch:
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
