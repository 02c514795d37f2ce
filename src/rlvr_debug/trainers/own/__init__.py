"""This project's own trainer (docs/trainer.md): every stage can be swapped, and every setting is known."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from rlvr_debug.errors import hint, typed
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.trainers import Demands, Job, Trainer

if TYPE_CHECKING:
    from rlvr_debug.replay.record import Record

# nats that the sampler may be off after an update, beyond which a run ends (trainers/own/training.py)
SYNC_BOUND = "sync_bound"


class _Own(Trainer):
    name = "own"
    stages = STAGES
    takes_launch = True
    takes_sampler = True
    takes_context = True
    shadows = True
    evaluates = True
    watching = frozenset({SYNC_BOUND})
    ours = True
    trains_by = ("trainers/own/training.py",)
    records_by = ("trainers/own/recorder.py",)

    def refused(self, demands: Demands) -> str:
        given = [(key, *item) for key, found in demands.options.items() for item in found.items()]
        for key, option, value in given:
            if option != SYNC_BOUND:
                return f"unknown key '{key}.{option}': {hint(option, [SYNC_BOUND])} with trainer own; for TRL's options set trainer: trl"
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                return f"key '{key}.{option}' is {typed(value)}, expected a number of nats above 0"
        return ""

    def train(self, job: Job, then: Callable[[], None] | None = None) -> None:
        import_module(f"{__name__}.training").train_run(job, then)

    def record(self, job: Job, steps: int) -> Record:
        found: Record = import_module(f"{__name__}.recorder").record_case(job, steps)
        return found


TRAINER = _Own()
