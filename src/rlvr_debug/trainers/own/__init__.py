"""This project's own trainer (docs/trainer.md): every stage can be swapped, and every setting is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.trainers.base import Job, Trainer

if TYPE_CHECKING:
    from rlvr_debug.probes import Measurement

__all__ = ["TRAINER"]


class _Own(Trainer):
    name = "own"
    stages = STAGES
    takes_launch = True
    takes_sampler = True
    takes_options = False
    ours = True

    def train(self, job: Job) -> None:
        from rlvr_debug.trainers.own.training import train_run

        train_run(job)

    def probe(self, job: Job) -> list[Measurement]:
        from rlvr_debug.probes import PROBES
        from rlvr_debug.trainers.own.probe import case_subject

        subject = case_subject(job)
        return [probe(subject) for probe in PROBES]


TRAINER = _Own()
