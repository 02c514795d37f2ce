"""What the first steps of a training come to, as one digest: two of the same go on alike, as far as these steps show."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.trainer import sample_rollouts, start, train_step
from rlvr_debug.grpo.training import Observer, Step, StepRecord, Training
from rlvr_debug.sampling.base import PolicySampler
from rlvr_debug.sampling.rollouts import Rollout

__all__ = ["traced"]


def traced(
    training: Training, model: object, reference: object, sampler: PolicySampler, steps: int
) -> str:
    """Train `model` in place for so many steps, and return a digest of all that they made.

    That is of each step what was sampled, trained on and computed, its gradients' norms and the weights after it; and
    after the last one what the sampler says and what would be saved.
    """
    policy = build_policy(model, reference, training.settings, training.seed)
    tracer = _Tracer()
    state = start(training, policy, sampler)
    for _ in range(steps):
        state, _ = train_step(training, state, tracer)
    tracer.add_rollouts(sample_rollouts(training, state))
    saved = training.stages.saved_weights(policy)
    tracer.add(saved[name] for name in sorted(saved))
    return tracer.digest.hexdigest()


class _Tracer(Observer):
    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def add(self, values: Iterable[Tensor | None]) -> None:
        for value in values:
            tensor = torch.empty(0) if value is None else value.detach().cpu().contiguous()
            self.digest.update(str(tuple(tensor.shape)).encode())
            self.digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())

    def add_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        for each in rollouts:
            self.digest.update(repr((each.ids, each.sampled)).encode())

    def end_step(self, step: Step) -> StepRecord:
        batch, targets, update = step.experience.batch, step.experience.targets, step.update
        self.add_rollouts(step.rollouts)
        self.add([batch.ids, batch.loss, batch.attention, targets.advantages, targets.reference])
        self.add(
            [update.logprobs, *update.passes, torch.tensor([*update.losses, *update.grad_norms])]
        )
        self.add(dict(sorted(step.policy.model.state_dict().items())).values())
        return super().end_step(step)
