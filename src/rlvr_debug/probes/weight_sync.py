"""After an update, does the sampler follow the trainer's new weights?"""

from __future__ import annotations

import copy

import torch

from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.sequences import build_batch
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.probes.base import Measurement, Subject
from rlvr_debug.sampling.rollouts import rollout

__all__ = ["weight_sync"]

_BOUND = 1e-4
_STEP = 1e-2


def weight_sync(subject: Subject) -> Measurement:
    """Move a copy of the model by a random step, sync, and compare both models with the sampler."""
    moved = copy.deepcopy(subject.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter += _STEP * torch.randn(parameter.shape, generator=generator)
    subject.stages.sync(moved.state_dict(), subject.sampler)
    subject.sampler.reset()
    temperature = subject.settings.temperature
    rollouts = rollout(
        [r.row for r in subject.rollouts[:: subject.settings.group_size]],
        subject.environment,
        subject.chat,
        subject.sampler,
        temperature=temperature,
        seed=0,
    )
    subject.sampler.load(subject.model.state_dict())
    batch = build_batch(rollouts, Stages(), subject.environment, subject.chat)
    sampled = torch.tensor([x for r in rollouts for s in r.segments for x in s.logprobs])
    gaps = {}
    with torch.no_grad():
        for name, model in (("new", moved), ("old", subject.model)):
            logprobs = token_logprobs(model, batch.ids, batch.real, batch.sampled, temperature)
            gaps[name] = float((logprobs[batch.sampled] - sampled).abs().mean())
    return Measurement(
        probe="weight-sync",
        measured={"gap_to_new_weights": gaps["new"], "gap_to_old_weights": gaps["old"]},
        bound=f"mean gap to the new weights below {_BOUND} nats, to the old ones above it",
        reason="the same float32 arithmetic in two implementations differs by less than 1e-5",
        passed=gaps["new"] < _BOUND < gaps["old"],
    )
