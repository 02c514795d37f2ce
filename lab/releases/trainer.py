"""A released trainer as the subject of the probes: what the adapters of all packages share.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.probes.base import Measurement
from rlvr_debug.grpo.sequences import Batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages

__all__ = ["ReleasedTrainer"]


class ReleasedTrainer(ABC):
    """The trainer's functions in the shapes of our stages.

    Each adapter also has a `loss`, to take the place of grpo.loss.policy_loss.
    """

    def build(self, *_: Any, **__: Any) -> Batch:
        """Return the batch of the trainer's own rollouts, whatever is asked for."""
        return self.batch

    def logprobs(
        self, model: Any, ids: Tensor, attention: Tensor, wanted: Tensor, *_: Any, **__: Any
    ) -> Tensor:
        """Return log-probabilities, [B, T], by the trainer's own function: 0 where none is wanted."""
        found = self.own_logprobs(model, ids, attention.long(), ids.shape[1] - 1)
        padded = F.pad(found, (1, 0))
        return torch.where(wanted, padded, torch.zeros_like(padded))

    @property
    @abstractmethod
    def batch(self) -> Batch:
        """Return what the trainer trains on."""

    @abstractmethod
    def own_logprobs(self, model: Any, ids: Tensor, attention: Tensor, kept: int) -> Tensor:
        """Return the trainer's log-probabilities of the last `kept` tokens, [B, kept]."""

    @abstractmethod
    def stages(self) -> Stages:
        """Return those stages that are functions of their own, or can be told apart in the loss."""

    @abstractmethod
    def second_iteration(self, settings: TrainingSettings) -> Measurement:
        """Measure the loss of a batch that is used again."""
