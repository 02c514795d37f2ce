"""A trainer that is a program of its own, which reads and writes files: the protocol of docs/trainers.md."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.trainers import Job, Trainer
from rlvr_debug.venvs import built_python

if TYPE_CHECKING:
    from rlvr_debug.replay.record import Record

_TRAINS, _RECORDS = "rlvr_debug.trainers.recording", "rlvr_debug.trainers.program_record"


@dataclass(frozen=True)
class Program:
    """A command line, to which the path of params.json is added, and the longest time between two rows of metrics."""

    argv: tuple[str, ...]
    stall_seconds: float
    apart: bool = False


class ProgramTrainer(Trainer):
    """A subclass says which program; what it writes is checked."""

    command_keys: tuple[str, ...] = ("stall_seconds",)

    @property
    def trains_by(self) -> tuple[str, ...]:
        return ("trainers/recording.py", *super().trains_by)

    @property
    def records_by(self) -> tuple[str, ...]:
        return ("trainers/program_record.py", *super().records_by)

    @abstractmethod
    def words(self, command: Mapping[str, Any]) -> Sequence[str]:
        """Return its command line, with `python` for its environment's interpreter, and ./ for the project's root."""

    def program(self, command: Mapping[str, Any]) -> Program:
        [apart] = self.venvs(command) or [""]
        python = str(built_python(apart)) if apart else sys.executable
        words = (python if word == "python" else word for word in self.words(command))
        argv = tuple(str(ROOT / word) if word.startswith("./") else word for word in words)
        return Program(argv, command["stall_seconds"], bool(apart))

    def train(self, job: Job, then: Callable[[], None] | None = None) -> None:
        import_module(_TRAINS).train_with_program(job, self.program(job.command))

    def record(self, job: Job, steps: int) -> Record:
        """Return the record of the case's first steps (docs/record.md), which are run beside job.out."""
        module = import_module(_RECORDS)
        found: Record = module.record_program(job, self.program(job.command), steps)
        return found


@dataclass(frozen=True)
class Fields:
    """Our settings as fields of the GRPOConfig of a trainer that stands on transformers' own, by its config.yaml.

    same: settings of the same name. renamed: ours to theirs. other: fields that
    follow from our settings in another way, or are the run's. fixed: settings that the trainer does in one way, and
    that way. lacking: values of other settings that it does not have. defaults: fields that depart from the trainer's own defaults in every run, unless options say otherwise.
    """

    trainer: str
    same: list[str]
    renamed: Mapping[str, str]
    other: list[str]
    fixed: Mapping[str, Any]
    lacking: Mapping[str, list[Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> Fields:
        return Fields(path.parent.name, **read_yaml(path))

    @property
    def taken(self) -> frozenset[str]:
        """Return the fields that follow from our settings: options may not say otherwise."""
        return frozenset({*self.same, *self.renamed.values(), *self.other})

    def unmapped(self, training: Mapping[str, Any]) -> list[str]:
        """Return the settings that the trainer has no counterpart for, as `key value`."""
        other = [key for key, value in self.fixed.items() if training.get(key, value) != value]
        without = [key for key, values in self.lacking.items() if training.get(key) in values]
        return [f"{key} {training[key]}" for key in other + without]

    def of(self, settings: TrainingSettings) -> dict[str, Any]:
        """Return keyword arguments of GRPOConfig, where a step of ours is num_iterations optimizer steps."""
        values = asdict(settings)
        rollouts = settings.prompts_per_step * settings.group_size
        parts = settings.gradient_accumulation_steps
        if rollouts % parts:
            raise InputError(
                f"training.gradient_accumulation_steps is {parts}, but with trainer {self.trainer} "
                f"it must divide the {rollouts} rollouts of a batch"
            )
        return {
            **self.defaults,
            **{name: values[name] for name in self.same},
            **{theirs: values[ours] for ours, theirs in self.renamed.items()},
            "delta": settings.delta or None,
            "lr_scheduler_type": settings.schedule,
            "max_steps": settings.steps * settings.num_iterations,
            "per_device_train_batch_size": rollouts // parts,
            "logging_steps": settings.num_iterations,
        }
