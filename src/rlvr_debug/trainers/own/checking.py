"""The check of a study's case that our own trainer trains: its first steps are made, recorded and computed again."""

from __future__ import annotations

from typing import Any

from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.trainers.base import CHECKED_STEPS, Job
from rlvr_debug.trainers.own.recorder import record_case

__all__ = ["check_case"]


def check_case(job: Job) -> dict[str, Any]:
    """Return what the check says of the run's first steps (replay/answer.py)."""
    record = record_case(job, CHECKED_STEPS)
    return answer_of(record, check(record))
