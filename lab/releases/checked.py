"""Runs a release for a few steps, in its own environment, and has them checked segment by segment."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.check.forks import USED, Forks
from lab.releases.checks import Subject
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.processes import variables_apart
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.trainers import CHECKED_STEPS, Job, load_trainer
from rlvr_debug.trainers.program import Program
from rlvr_debug.trainers.program_record import record_program
from rlvr_debug.trainers.verifiers.fixes import faults_of_release, fixes_without
from rlvr_debug.venvs import build_venv

SCRIPTS = ROOT / "lab" / "releases" / "scripts"
_APART = {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}
_LIMIT = 600  # seconds
_STUDY = ROOT / "studies" / "verifiers-0.1.3.yaml"
_ROWS = {"rows": 60, "heldout": 8}
# so cool that the tiny model's replies are rendered as they were sampled, whatever numbers a processor draws: what
# deviates is the release's doing. At 1.0 the server renders some reply otherwise with 2 of 6 seeds
_SMALL = {"prompts_per_step": 4, "temperature": 0.6}


@lru_cache(2)
def forks_of(python: str, modules: Sequence[str] = USED) -> Forks:
    """Return a process of an environment's interpreter that has imported the modules."""
    return Forks(python, modules)


def forked_program(job: Job) -> Program:
    """Return the job's program, which runs in such a process's fork."""
    trainer: Any = load_trainer(job.run.trainer)
    python, *words = trainer.program(job.command).argv
    return Program((*forks_of(python).python, *words), job.command["stall_seconds"], apart=True)


def checked_release(subject: Subject) -> Mapping[str, Any] | str:
    """Return what the check says of a release (replay/answer.py), or why it could not be run."""
    try:
        python = build_venv(subject.release.environment)
        with tempfile.TemporaryDirectory() as scratch:
            if subject.release.package == "trl":
                words = [f"{name}={value}" for name, value in subject.settings]
                return checked_script(
                    forks_of(str(python)).python, ["trl_padded.py", *words], Path(scratch)
                )
            job = release_job(subject, Path(scratch))
            record = record_program(job, forked_program(job), CHECKED_STEPS)
            return answer_of(record, check(record))
    except InputError as error:
        return str(error)


def run_apart(
    command: Sequence[str], folder: Path, limit: int | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of an environment of its own, with these variables too."""
    env = {**variables_apart(), **_APART, **variables}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": limit}
    return subprocess.run(command, cwd=folder, env=env, check=False, **how)


def checked_script(python: Sequence[str], start: Sequence[str], scratch: Path) -> Mapping[str, Any]:
    """Return what the check says of a script of ours with its arguments, or of `-m MODULE ...`; Raise InputError where it is not run.

    python: the words that stand for the interpreter.
    """
    told, out = scratch / "told.json", scratch / "answer.json"
    write_json(told, {"out": str(out), "steps": 3, "rewards": True, "record": None})
    path = f"{variables_apart()['PYTHONPATH']}{os.pathsep}{SCRIPTS}"
    script = start if start[0] == "-m" else [str(SCRIPTS / start[0]), *start[1:]]
    command = [*python, "-m", "rlvr_debug.recorders.trl.check_script", str(told), *script]
    try:
        done = run_apart(command, scratch, _LIMIT, PWD=str(scratch), PYTHONPATH=path)
    except subprocess.TimeoutExpired:
        raise InputError(f"no answer within {_LIMIT} seconds") from None
    if not out.is_file():
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        said = next((line for line in reversed(lines) if "Error" in line), lines[-1])
        raise InputError(said.replace(str(scratch), "").replace(f"{ROOT}{os.sep}", ""))
    answer: Mapping[str, Any] = read_json(out)
    return answer


def release_job(subject: Subject, scratch: Path) -> Job:
    """Return the job of a release of verifiers with the subject's fixes. Raise InputError where no run has just these."""
    release = subject.release.environment
    own = faults_of_release(release)
    faults = tuple(sorted(fault for fix, fault in own.items() if fix not in subject.fixes))
    if (found := fixes_without(release, faults)) != [*subject.fixes]:
        raise InputError(
            f"fixes of {release}: a run has {', '.join(found) or 'none'}, expected {', '.join(subject.fixes)}"
        )
    params = load_params(ROOT / "params.yaml", _STUDY)
    run = next(run for run in runs(params) if run.arm == "case")
    settings: dict[str, Any] = {**_SMALL, **dict(subject.settings)}
    run = replace(run, faults=faults, training=replace(run.training, **settings))
    data = {**params.data_settings(run.environment), **_ROWS}
    prepare(run.environment, data, scratch)
    return Job(
        run,
        params.settings(run.environment),
        ROOT / params.base_model_of(run.environment).folder,
        scratch / "train.jsonl",
        scratch / "check.json",
        command={"environment": release, "stall_seconds": 600},
    )
