"""A trainer that is not ours, tried for one step of a study's case before a study is run with it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, rooted
from rlvr_debug.errors import InputError
from rlvr_debug.metrics.settings import DiagnosticSettings
from rlvr_debug.models.places import base_model_of
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import study_params
from rlvr_debug.trainers import load_trainer
from rlvr_debug.trainers.base import Job
from rlvr_debug.trainers.program import ProgramTrainer
from rlvr_debug.trainers.recording import Recording, record
from rlvr_debug.venvs import build_venv

__all__ = ["check_program"]


def check_program(overlay: Path) -> Recording:
    """Run the case of an overlay's study for one step, and return what its trainer recorded.

    Raise InputError for what it does not write as it should, and where the trainer is no program.
    """
    params = study_params(overlay)
    trainer = load_trainer(params["trainer"])
    if not isinstance(trainer, ProgramTrainer):
        raise InputError(f"{overlay}: key 'trainer' is {trainer.name}, expected a program's")
    for name in trainer.venvs(params["command"]):
        build_venv(name)
    run = next(runs(params))
    run = replace(run, training=replace(run.training, steps=1))
    place = ROOT / ".run" / "check-program"
    shutil.rmtree(place, ignore_errors=True)
    prepare(run.environment, rooted(params["data"][run.environment], ROOT), place)
    job = Job(
        run,
        params["environments"][run.environment],
        ROOT / base_model_of(params, run.environment).folder,
        place / "train.jsonl",
        place,
        DiagnosticSettings(rollouts_every=1),
    )
    return record(job, trainer.program(params["command"]))
