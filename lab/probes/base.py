"""A probe checks one component of a trainer at step 0, without training: seconds, deterministic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.environments.base import Environment
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.loss import Loss, policy_loss
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["Measurement", "Subject", "borrowed", "measurement", "readable", "shift_weights"]

_TEXTS: dict[str, dict[str, str]] = read_yaml(Path(__file__).with_name("texts.yaml"))


@dataclass(frozen=True)
class Subject:
    """The trainer under test, with rollouts that its sampler made: group_size for each prompt.

    policy: before its first update, with the reference that the trainer holds it to. rewards: [B], what
    was trained on, where it was recorded and is not for the score stage to say. build: rollouts to what
    is trained; loss: of a micro-batch. A trainer whose batch or loss does not come apart into stages has
    its own.
    """

    policy: Policy
    sampler: InProcessSampler
    stages: Stages
    settings: TrainingSettings
    environment: Environment
    chat: Chat
    rollouts: list[Rollout]
    rewards: Tensor | None = None
    build: Callable[..., Batch] = build_batch
    loss: Loss = policy_loss

    @property
    def model(self) -> Any:
        """What log-probabilities are computed with, adapter included."""
        return self.policy.model

    @property
    def precision(self) -> str:
        """The coarsest that log-probabilities go through: float32 or bfloat16."""
        fine = not self.settings.bf16 and self.settings.logprobs_dtype != "bfloat16"
        return "float32" if fine else "bfloat16"


@dataclass(frozen=True)
class Measurement:
    """What was measured, the bound that it was held against, and why that bound.

    passed: the component does what it should.
    """

    probe: str
    measured: dict[str, float]
    bound: str
    reason: str
    passed: bool


def measurement(
    probe: str, measured: dict[str, float], passed: bool, **numbers: float
) -> Measurement:
    """Return it with the bound and reason of texts.yaml. numbers: what stands in braces there."""
    text = _TEXTS[probe]
    bound, reason = (text[key].format(**numbers) for key in ("bound", "reason"))
    return Measurement(probe, measured, bound, reason, passed)


def readable(found: Measurement) -> str:
    """As lines of text."""
    width = max(map(len, found.measured), default=0)
    return "\n".join(
        [
            f"{found.probe}: {'passes' if found.passed else 'FAILS'}",
            *(f"    {name:{width}}  {value:.6g}" for name, value in found.measured.items()),
            f"    bound: {found.bound}",
            f"    why: {found.reason}",
        ]
    )


@contextmanager
def borrowed(policy: Policy) -> Iterator[None]:
    """Inside, there are no gradients yet; what becomes of weights and gradients is undone at the end.

    No copy of the model: where a library has replaced its forward, a copy runs the original's.
    """
    kept = [(p, p.detach().clone(), p.grad) for p in policy.model.parameters()]
    try:
        for parameter, _, _ in kept:
            parameter.grad = None
        yield
    finally:
        with torch.no_grad():
            for parameter, weight, gradient in kept:
                parameter.copy_(weight)
                parameter.grad = gradient


def shift_weights(policy: Policy, size: float) -> None:
    """Add noise of this standard deviation to every weight that is trained."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trained:
            parameter += size * torch.randn(parameter.shape, generator=generator)
