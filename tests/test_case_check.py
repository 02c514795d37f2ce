"""The job of a study that checks its case: our own trainer's here; others' in tests of their environments."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlvr_debug.causes import hypothesis_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.environments.musique.rows import synthetic_musique
from rlvr_debug.files import read_json, write_jsonl
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.mechanism import mechanism_of
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.trainers import load_trainer
from rlvr_debug.trainers.base import CHECKED_ROLLOUTS, CHECKED_STEPS, Job
from rlvr_debug.venvs import build_venv
from tests.study_file import study_file

PARAMS = load_params(ROOT / "params.yaml")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    found = synthetic_musique(6, hops={2: 1}, paragraphs=6, same_relation=0, seed=0)
    write_jsonl(path, (row.to_json() for row in found))
    return path


def test_the_default_case_deviates_where_its_three_defects_are(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = next(run for run in runs(PARAMS) if run.design == "case")
    study = study_file(tmp_path, PARAMS, run, rows)
    out = tmp_path / "check.json"
    monkeypatch.setattr(sys, "argv", ["check_case.py", "--study", str(study), "--out", str(out)])
    monkeypatch.setattr(torch, "set_deterministic_debug_mode", lambda mode: None)
    runpy.run_path(str(ROOT / "scripts" / "check_case.py"), run_name="check_case")["main"]()
    answer = read_json(out)
    present = {slug for slug in hypothesis_names() if mechanism_of(slug, answer).present}
    # three steps of two prompts may have little contrast
    assert present - {"reward-signal", "advantage-scaling"} == {
        "hidden-context",
        "sequence-mismatch",
    }
    assert {s["segment"] for s in answer["segments"] if s["status"] == "deviates"} >= {
        "tokens",
        "model inputs",
    }
    assert "DEVIATES  the loss mask is the attention mask" in capsys.readouterr().out
    assert "seconds" not in str(answer)  # which would be others each time


def test_a_check_is_told_the_case_with_few_rollouts_a_step() -> None:
    study = resolve(PARAMS, ROOT)
    told = study.checking().run.training
    case = study.runs[0].training
    assert (
        told.prompts_per_step * told.group_size
        <= CHECKED_ROLLOUTS
        < case.prompts_per_step * (case.group_size)
    )
    assert replace(told, prompts_per_step=case.prompts_per_step) == case


@pytest.mark.heavy
@pytest.mark.releases
@pytest.mark.parametrize(
    ("overlay", "present"),
    [
        ("trl", set()),
        ("trl-reward-whole-conversation", {"reward-signal"}),
        ("trl-short-completions", {"context-truncation", "reward-signal", "group-construction"}),
        ("trl-no-learning-rate", {"optimizer-no-op"}),
    ],
)
def test_the_case_of_a_study_of_trl_is_checked_as_a_user_s_script_is(
    overlay: str, present: set[str], tmp_path: Path
) -> None:
    build_venv("trl")
    params = load_params(ROOT / "params.yaml", ROOT / "studies" / f"{overlay}.yaml")
    study = replace(resolve(params, ROOT), results=tmp_path)
    job: Job = replace(study.checking(), out=tmp_path / "check.json")
    prepare(job.run.environment, study.data_settings(job.run.environment), job.rows.parent)
    record = load_trainer("trl").record(job, CHECKED_STEPS)
    answer = answer_of(record, check(record))
    found = {slug for slug in hypothesis_names() if mechanism_of(slug, answer).present}
    # chance may leave six groups without contrast
    assert found - ({"advantage-scaling", "reward-signal"} - present) == present
    assert not [s for s in answer["segments"] if s["status"] == "not seen"]
