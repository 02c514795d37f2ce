"""Where is each fault? Told without training: stages of the case are put into healthy first steps, and compared.

Half of the stages at a time, so that few steps are run; then, with the right stages, each setting of the case.
`make bench-faults CASES=folder` asks it of each case.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.faults.case import Told, only, settings_of, stages_of
from benchmarks.faults.run import Place, first_steps
from rlvr_debug.grpo.policy import build_policy
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import sample_rollouts, start, train_step
from rlvr_debug.grpo.training import Observer, Progress, Step, Training
from rlvr_debug.sampling.base import PolicySampler
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.trainers import CHECKED_STEPS
from rlvr_debug.trainers.own.training import load_policy


def differing(names: Sequence[str], same: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return those of the names that change anything. same: whether all of these together change nothing."""
    if not names or same(names):
        return []
    if len(names) == 1:
        return list(names)
    middle = len(names) // 2
    found = [n for half in (names[:middle], names[middle:]) for n in differing(half, same)]
    return found or list(names)  # two that only together change something are both named


def parts_found(whole: Told) -> tuple[list[str], int]:
    """Return the stages and settings that change the first steps, and how many times these were run.

    All that is known of a case is what its stages and settings do.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _searched(whole, Path(folder))


def _searched(whole: Told, folder: Path) -> tuple[list[str], int]:
    own, right = vars(stages_of(whole.faults)), vars(Stages())
    places: dict[str, Place] = {}
    digests: dict[tuple[str, ...], str] = {}

    def steps(of: Told, names: Sequence[str] = ()) -> str:
        key = (of.digest, *names)
        if of.digest not in places:
            places[of.digest] = Place(of, folder / of.digest)
        if key not in digests:
            stages = Stages(**{**right, **{name: own[name] for name in names}})
            digests[key] = _trace(places[of.digest], stages)
        return digests[key]

    settings = replace(whole, faults=())
    healthy = only(whole, ())
    found = differing(STAGES, lambda names: steps(settings, names) == steps(settings))
    found += differing(
        settings_of(whole), lambda names: steps(only(whole, names)) == steps(healthy)
    )
    return found, len(digests)


def _trace(place: Place, stages: Stages) -> str:
    training = first_steps(place, stages)
    sampler = base_sampler(place.base_model, place.chat)
    model, reference = load_policy(place.base_model, training.settings)
    return traced(training, model, reference, sampler, CHECKED_STEPS)


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

    def end_step(self, step: Step) -> Progress:
        batch, update = step.experience, step.update
        self.add_rollouts(step.rollouts)
        self.add([batch.ids, batch.loss, batch.attention, batch.advantages, batch.reference])
        self.add(
            [update.logprobs, *update.passes, torch.tensor([*update.losses, *update.grad_norms])]
        )
        self.add(dict(sorted(step.policy.model.state_dict().items())).values())
        return super().end_step(step)
