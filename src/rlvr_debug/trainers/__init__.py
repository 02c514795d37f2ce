"""What every trainer is given, what it says about itself, and all of them by name (docs/extend.md shows how to add one)."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlvr_debug.grpo.settings import NO_ROLLOUTS, DiagnosticSettings, TrainingSettings
from rlvr_debug.jobs import Sampling

if TYPE_CHECKING:
    from rlvr_debug.replay.record import Record

# optimizer steps that a case is checked in: a third is sampled with weights that two have moved, past a warm-up's first
CHECKED_STEPS = 3
# and the rollouts of a step, at most, where a group has no more
CHECKED_ROLLOUTS = 16
# the file of a run that says of stages in which step it would have gone another way with another run's
SHADOW = "shadow.json"


@dataclass(frozen=True)
class Run:
    """One training run, wholly resolved; trained_as is the arm that was trained where several have equal settings."""

    arm: str
    design: str
    hypothesis: str
    environment: str
    seed: int
    trainer: str
    faults: tuple[str, ...]
    rollouts: Mapping[str, Any]
    options: Mapping[str, Any]
    training: TrainingSettings
    trained_as: str

    @property
    def name(self) -> str:
        """Return `environment/arm/seed` of the run that was trained: its results are in the folder of that name."""
        return f"{self.environment}/{self.trained_as}/{self.seed}"

    @property
    def rollouts_per_step(self) -> int:
        return self.training.prompts_per_step * self.training.group_size


@dataclass(frozen=True)
class Job:
    """What a trainer is given to train one run, or to check it: out is the folder of a training, or the file of a check.

    shadow: the faults of another run, with whose stages this one's are compared; None: with none.
    """

    run: Run
    environment: Mapping[str, Any]
    base_model: Path
    rows: Path
    out: Path
    diagnostics: DiagnosticSettings = NO_ROLLOUTS
    command: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    shadow: tuple[str, ...] | None = None

    @property
    def trained_in(self) -> dict[str, Any]:
        """The environment's settings in training, which a run may change."""
        return {**self.environment, **self.run.rollouts}


@dataclass(frozen=True)
class Demands:
    """What a study asks of its trainer before anything runs; options stand by their key of params.yaml."""

    command: Mapping[str, Any]
    case: str
    faults: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]


class Trainer(ABC):
    """A trainer of a study's runs, exported as TRAINER by a folder beside this file, which is found by itself and whose import must not import torch."""

    name: str
    # the stages of GRPO that a study can break or mend in it
    stages: tuple[str, ...] = ()
    # the keys of `command` in params.yaml that it reads
    command_keys: tuple[str, ...] = ()
    # whether a case may bring a reward function of the user's
    takes_reward = False
    # whether `launch` starts it, in several processes
    takes_launch = False
    # whether sampler vllm answers its training rollouts too
    takes_sampler = False
    # options that a study may not give it, as they follow from other settings; those that only watch, so that a run
    # with them trains what it would without
    taken_options: frozenset[str] = frozenset()
    watching: frozenset[str] = frozenset()
    # whether it compares a run's stages with those of another, `shadow` of a job
    shadows = False
    # whether max_context ends its training rollouts
    takes_context = False
    # whether the process of a training can do something more with what it wrote, `then` of train
    evaluates = False
    # whether it is this project's, so that reports need not name it
    ours = False
    # what diagnose asks the user to add to a study that it writes, and what stands there until then; a trainer
    # that asks for nothing is not offered
    to_fill_in: str = ""
    placeholders: ClassVar[Mapping[str, Any]] = {}

    @property
    def trains_by(self) -> tuple[str, ...]:
        """The files and folders of this package that `train` imports by name, or runs in another process."""
        return (f"trainers/{self.name}",)

    @property
    def records_by(self) -> tuple[str, ...]:
        """Those of `record`."""
        return self.trains_by

    def unmapped(self, training: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
        """Return the settings of `training` that it has no counterpart for with these options, as `key value`."""
        return []

    def missing(
        self, stages: Iterable[str], training: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[str]:
        """Return which of these stages, broken or swapped, and of these settings it has no counterpart for."""
        unknown = [f"stage {stage}" for stage in stages if stage not in self.stages]
        return unknown + self.unmapped(training, options)

    def refused(self, demands: Demands) -> str:
        """Return what it cannot meet: key, found and expected; empty where nothing is wrong."""
        return ""

    def venvs(self, command: Mapping[str, Any]) -> list[str]:
        """Return the environments of envs/ that it runs in beside the main one. command: params.yaml's."""
        return []

    def random_reward(
        self, options: Mapping[str, Any], command: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], dict[str, Any]] | None:
        """Return the faults and options of the control with random rewards, or None where it can have none."""
        return (("random-reward",), dict(options)) if "score" in self.stages else None

    @abstractmethod
    def train(self, job: Job, then: Callable[[], None] | None = None) -> None:
        """Write model.safetensors, timings.jsonl, rollouts.jsonl, shadow.json and, last, metrics.jsonl to job.out.

        then: of a trainer that evaluates, called once these files are there, while a killed run still goes on from where it was.
        """

    @abstractmethod
    def record(self, job: Job, steps: int) -> Record:
        """Run the first optimizer steps beside job.out and return their record (docs/record.md)."""


def trainer_names() -> tuple[str, ...]:
    return tuple(info.name for info in pkgutil.iter_modules(__path__) if info.ispkg)


@functools.cache
def load_trainer(name: str) -> Trainer:
    trainer: Trainer = importlib.import_module(f"{__name__}.{name}").TRAINER
    return trainer
