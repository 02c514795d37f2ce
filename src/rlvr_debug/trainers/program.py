"""A trainer that is a program of its own, which reads and writes files: the protocol of docs/trainers.md."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.trainers.base import Job, Trainer
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
