"""Rollouts -> the padded tensors that the update reads.

The trained sequence is rebuilt segment by segment through two stages, which is where a trainer can
come to train on another sequence than the one that was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["Batch", "build_batch", "trained_sequence"]


@dataclass(frozen=True)
class Batch:
    """Right-padded sequences. ids: long [B, T]; the others bool [B, T].

    sampled: the environment's own mask of what the model wrote; real: not padding; loss and
    attention: what the stages made of these two.
    """

    ids: Tensor
    sampled: Tensor
    real: Tensor
    loss: Tensor
    attention: Tensor

    def rows(self, index: Tensor) -> Batch:
        """These rows, cut to the longest of them."""
        width = int(self.real[index].sum(1).max())
        return Batch(
            *(
                getattr(self, name)[index][:, :width]
                for name in ("ids", "sampled", "real", "loss", "attention")
            )
        )


def trained_sequence(
    rollout: Rollout, stages: Stages, environment: Environment, chat: Chat
) -> tuple[list[int], list[bool]]:
    """Ids [T] and which of them were sampled [T]. Sampled ids always stand as they are."""
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
    rollouts: list[Rollout], stages: Stages, environment: Environment, chat: Chat
) -> Batch:
    sequences = [trained_sequence(rollout, stages, environment, chat) for rollout in rollouts]
    width = max(len(ids) for ids, _ in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    sampled = torch.zeros(len(sequences), width, dtype=torch.bool)
    real = torch.zeros(len(sequences), width, dtype=torch.bool)
    for b, (tokens, mask) in enumerate(sequences):
        ids[b, : len(tokens)] = torch.tensor(tokens)
        sampled[b, : len(tokens)] = torch.tensor(mask)
        real[b, : len(tokens)] = True
    return Batch(
        ids, sampled, real, stages.loss_mask(sampled, real), stages.attention_mask(sampled, real)
    )
