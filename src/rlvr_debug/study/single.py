"""One training without a study, and a trainer that is not ours tried for one step before a study is run with it."""

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from rlvr_debug.blocks import told
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare, rows_of
from rlvr_debug.errors import InputError
from rlvr_debug.files import locked, write_jsonl, write_text
from rlvr_debug.grpo.settings import ALL_ROLLOUTS
from rlvr_debug.jobs import Sampling
from rlvr_debug.models.places import MANIFEST, BaseModel, base_model, fetch_model
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params, study_params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.trainers import Job, load_trainer
from rlvr_debug.trainers.program import ProgramTrainer
from rlvr_debug.trainers.recording import Recording, record
from rlvr_debug.venvs import build_venv

_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def train_single(overlay: Mapping[str, Any], epochs: int, out: Path) -> None:
    """Train the overlay's case with its one seed, for so many epochs unless it says `training.steps`, and write to `out` what a run of a study does."""
    environment, model = overlay["environment"], model_of(overlay["base_model"])
    data, training = overlay["data"][environment], overlay["training"]
    rows = rows_of(environment, data, "path" if "path" in data else "datasets")
    steps = math.ceil(len(rows) * epochs / training["prompts_per_step"])
    name = f"{model.name}@{model.revision}" if model.revision else model.name
    file, kept = out / "params.yaml", out / "rows.jsonl"
    whole = {**overlay, "base_model": name, "training": {"steps": steps, **training}}
    write_text(file, yaml.safe_dump(whole, sort_keys=False))
    params = load_params(ROOT / "params.yaml", file)
    for venv in params.sampler_venvs:
        build_venv(venv)
    if model.revision:
        # once, whichever of several processes comes first
        folder = ROOT / model.folder
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not (folder / MANIFEST).is_file():
                fetch_model(model, folder)
    write_jsonl(kept, (row.to_json() for row in rows))
    run = next(runs(params))  # the case
    job = Job(
        run,
        params.settings(environment),
        ROOT / model.folder,
        kept,
        out,
        params.diagnostics,
        sampling=Sampling(params.sampler, params.served),
    )
    load_trainer(run.trainer).train(job)


def model_of(name: str) -> BaseModel:
    """Return where that model is: in a folder from here, or on the hub, at its main revision if none is named."""
    if (folder := Path(name)).is_dir():
        return BaseModel(str(folder.resolve()))
    if "@" not in name and not _ON_HUB.fullmatch(name):
        raise InputError(
            f"base model '{name}': no such folder; give a folder, or owner/name or owner/name@revision on the hub"
        )
    return base_model(name if "@" in name else f"{name}@main")


def check_program(overlay: Path) -> Recording:
    """Run the case of an overlay's study for one step, and return what its program recorded."""
    place = ROOT / ".run" / "check-program"
    study = replace(resolve(study_params(overlay), ROOT), results=place / "results")
    trainer = study.trainer
    if not isinstance(trainer, ProgramTrainer):
        raise InputError(f"{overlay}: key 'trainer' is {trainer.name}, which runs no program")
    for name in trainer.venvs(told(study.params.command)):
        build_venv(name)
    shutil.rmtree(place, ignore_errors=True)
    job = study.checking()
    name = job.run.environment
    prepare(name, study.data_settings(name), job.rows.parent)
    run = replace(job.run, training=replace(job.run.training, steps=1))
    job = replace(job, run=run, out=place, diagnostics=ALL_ROLLOUTS)
    return record(job, trainer.program(told(study.params.command)))
