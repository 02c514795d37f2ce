"""A trainer that is not ours, tried for one step of a study's case before a study is run with it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.metrics.settings import ALL_ROLLOUTS
from rlvr_debug.study.params import study_params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.trainers.program import ProgramTrainer
from rlvr_debug.trainers.recording import Recording, record
from rlvr_debug.venvs import build_venv


def check_program(overlay: Path) -> Recording:
    """Run the case of an overlay's study for one step, and return what its trainer recorded.

    Raise InputError for what it does not write as it should, and where the trainer is no program.
    """
    place = ROOT / ".run" / "check-program"
    study = replace(resolve(study_params(overlay), ROOT), results=place / "results")
    trainer = study.trainer
    if not isinstance(trainer, ProgramTrainer):
        raise InputError(f"{overlay}: key 'trainer' is {trainer.name}, expected a program's")
    for name in trainer.venvs(told(study.params.command)):
        build_venv(name)
    shutil.rmtree(place, ignore_errors=True)
    job = study.checking()
    name = job.run.environment
    prepare(name, study.data_settings(name), job.rows.parent)
    run = replace(job.run, training=replace(job.run.training, steps=1))
    job = replace(job, run=run, out=place, diagnostics=ALL_ROLLOUTS)
    return record(job, trainer.program(told(study.params.command)))
