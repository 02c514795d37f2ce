"""The record that a program writes of its first steps, where it is asked for one (docs/record.md)."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from functools import partial

from rlvr_debug.models.base_model import one_thread
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments import SEGMENTS
from rlvr_debug.replay.store import read_record
from rlvr_debug.trainers.asked import settings_of
from rlvr_debug.trainers.base import Job
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.protocol import RECORDED
from rlvr_debug.trainers.recording import record


def record_program(job: Job, program: Program, steps: int) -> Record:
    """Run the case for so many steps, in a folder beside job.out, and return the record that the program wrote, if any."""
    one_thread()
    place = job.out.with_suffix("")
    # an update at the first step, whatever the warm-up
    training = replace(job.run.training, steps=steps, save_steps=0, warmup_steps=0)
    few_steps = replace(job, run=replace(job.run, training=training), out=place)
    try:
        found = record(few_steps, program, "check of", recorded=True)
        folder = place / "attempt" / "out" / RECORDED
        if folder.is_dir():
            return _without_files(read_record(folder))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    unseen = {segment.name: "the program wrote no record" for segment in SEGMENTS}
    settings = settings_of(job.run.training, found.environment, found.chat)
    return Record(job.run.trainer, settings, None, None, lambda: None, unseen=unseen)


def _without_files(record: Record) -> Record:
    """Return the record, whose module is no more built from its folder."""
    try:
        module = record.build()
    except NotSeen:  # it has no model
        return record
    return replace(record, build=partial(copy.deepcopy, module))
