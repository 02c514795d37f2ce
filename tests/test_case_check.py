"""The job of a study that checks its case, and the full study's arms."""

import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.releases.checked import forked_program
from rlvr_debug.blocks import told
from rlvr_debug.causes import hypothesis_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.data.prepare import prepare
from rlvr_debug.environments.musique.rows import synthetic_musique
from rlvr_debug.files import read_json, read_jsonl, read_table, write_jsonl
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.check import check
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from rlvr_debug.study.resolved import resolve
from rlvr_debug.trainers import CHECKED_ROLLOUTS, CHECKED_STEPS, Job, Run
from rlvr_debug.trainers.program_record import record_program
from rlvr_debug.venvs import build_venv
from rlvr_debug.verdicts.decide import mechanism_of
from tests.study_file import study_file
from tests.test_workflow import MINI, copy

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
    few, usual = (each.prompts_per_step * each.group_size for each in (told, case))
    assert few <= CHECKED_ROLLOUTS < usual
    assert replace(told, prompts_per_step=case.prompts_per_step) == case


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
    record = record_program(job, forked_program(job), CHECKED_STEPS)
    answer = answer_of(record, check(record))
    found = {slug for slug in hypothesis_names() if mechanism_of(slug, answer).present}
    # chance may leave six groups without contrast
    assert found - ({"advantage-scaling", "reward-signal"} - present) == present
    assert not [s for s in answer["segments"] if s["status"] == "not seen"]


# --- the full study


FULL = load_params(ROOT / "params.yaml", ROOT / "studies" / "full.yaml")
FIRST: Mapping[str, Run] = {run.arm: run for run in reversed(list(runs(FULL)))}
CASE = FIRST["case"]

# by hypothesis and arm: the block of settings in which it is told what the case is not
ARMS: list[tuple[str, str, str, Any]] = [
    ("lora-weight-sync", "verified-sync", "options", {"sync_bound": 1e-3}),
    (
        *("lora-weight-sync", "full-fine-tuning", "training"),
        {"lora_r": 0, "lora_alpha": 16, "learning_rate": 4e-4},
    ),
    ("token-masking", "with-tool-tokens", "faults", "tool-tokens-trained"),
    ("kl-penalty", "kl-beta-0", "training", {"kl_beta": 0.0}),
    ("kl-penalty", "kl-beta-001", "training", {"kl_beta": 0.01}),
    ("kl-penalty", "kl-formula-reversed", "faults", "kl-reversed"),
    ("kl-penalty", "dr-grpo-beta-0", "training", {"kl_beta": 0.0, "aggregation": "dr_grpo"}),
    ("context-truncation", "double-context", "rollouts", {"max_context": 384}),
    ("context-truncation", "half-context", "rollouts", {"max_context": 96}),
    ("reward-signal", "binary", "rollouts", {"weights": {"exact_match": 1.0}}),
    *(
        ("reward-signal", f"{name}-only", "rollouts", {"weights": {name: 1.0}})
        for name in ("f1", "recall", "precision", "citation", "format")
    ),
    ("multi-step", "with-calculator", "environment", "calculator"),
    ("advantage-scaling", "no-scaling", "training", {"scale_rewards": "none"}),
    ("advantage-scaling", "epsilon-tenth", "training", {"advantage_epsilon": 0.1}),
    ("gradient-explosion", "clip-tenth", "training", {"max_grad_norm": 0.1}),
    ("gradient-explosion", "half-rate", "training", {"learning_rate": 1e-3}),
]
# what the original trained
ADAPTER = {"lora_r": 16, "lora_alpha": 32, "kl_beta": 0.04}
# told what the case is told, because the case has that right: the same runs, and the tables say so
AS_THE_CASE = {
    *("forced-sync", "loss-mask", "kl-beta-004", "own-scores", "own-limit"),
    "same-reward-and-weights",
}


@pytest.mark.parametrize(("slug", "arm", "block", "value"), ARMS)
def test_each_of_the_original_s_arms_is_the_case_but_for_its_own_change(
    slug: str, arm: str, block: str, value: Any
) -> None:
    run, changes = FIRST[arm], {block: value}
    assert (run.hypothesis, run.design) == (slug, "repair")
    assert run.environment == changes.get("environment", "musique")
    assert run.faults == (*CASE.faults, *([value] if block == "faults" else []))
    assert run.options == changes.get("options", {})
    own = CASE.rollouts if run.environment == "musique" else {}
    assert run.rollouts == {**own, **changes.get("rollouts", {})}
    assert run.training == replace(CASE.training, **changes.get("training", {}))


def test_each_arm_is_a_training_of_its_own_but_for_those_that_the_case_has_right() -> None:
    assert {key: getattr(CASE.training, key) for key in ADAPTER} == ADAPTER
    assert len(CASE.faults) == 3
    repairs = {run.arm: run.trained_as for run in FIRST.values() if run.design == "repair"}
    shared = {arm for arm, trained in repairs.items() if trained != arm}
    assert shared == {*AS_THE_CASE, "single-step"}
    assert {repairs[arm] for arm in AS_THE_CASE} == {"case"}
    assert repairs["single-step"] == "gsm8k"


# --- run, on one seed and two steps

TRIED = {
    "lora-weight-sync": ("forced-sync", "verified-sync", "full-fine-tuning"),
    "token-masking": ("loss-mask", "with-tool-tokens"),
    "kl-penalty": ("kl-formula-reversed", "kl-beta-001"),
    "context-truncation": ("half-context",),
    "multi-step": ("with-calculator",),
    "reward-signal": ("format-only",),
}


@pytest.mark.heavy
def test_arms_of_the_original_train_and_are_judged(tmp_path: Path) -> None:
    project = copy(ROOT, tmp_path, forked=True)
    overlay = {
        "study": "mini",
        "case": FULL.case,
        "cases": {FULL.case: told(FULL.cases[FULL.case])},
        "base_models": dict(FULL.base_models),
        "seeds": [0],
        "unnamed": False,
        "data": {name: {"rows": 60, "heldout": 8} for name in ("musique", "calculator")},
        "training": {
            **{key: getattr(FULL.training, key) for key in ("lora_r", "lora_alpha")},
            **MINI["training"],
            "learning_rate": FULL.training.learning_rate,
        },
        "hypotheses": {
            **dict.fromkeys(load_params(ROOT / "params.yaml").arms),
            **{slug: {"arms": {arm: {} for arm in arms}} for slug, arms in TRIED.items()},
        },
    }
    project.overlay(overlay)
    done = project.run()
    assert done.returncode == 0, done.stderr
    table = read_table(project.results / "tables" / "runs.csv").fillna({"changes": ""})
    found: dict[str, Mapping[Any, Any]] = {row["arm"]: row for row in table.to_dict("records")}
    assert {arm for arms in TRIED.values() for arm in arms} <= set(found)

    def metrics(arm: str) -> list[dict[str, Any]]:
        run = f"{found[arm]['environment']}/{found[arm]['trained_as']}/0"
        rows = read_jsonl(project.results / "runs" / run / "metrics.jsonl")
        return [row for _, row in rows]

    # verified after each update, and the same training as the case's
    verified = metrics("verified-sync")
    assert all(row.pop("sync_gap") < 1e-3 for row in verified)
    assert verified == metrics("case")
    assert found["verified-sync"]["changes"] == ""
    assert found["forced-sync"]["trained_as"] == found["loss-mask"]["trained_as"] == "case"
    more = found["with-tool-tokens"]
    assert more["trained_tokens"] > more["sampled_tokens"]
    assert any("outcomes/context_limit" in row for row in metrics("half-context"))
    assert not any("outcomes/context_limit" in row for row in metrics("case"))
    assert found["with-calculator"]["environment"] == "calculator"
    table = read_table(project.results / "tables" / "verdicts.csv")
    verdicts: dict[str, Mapping[Any, Any]] = {v["hypothesis"]: v for v in table.to_dict("records")}
    assert set(verdicts) == set(TRIED)
    assert verdicts["lora-weight-sync"]["status"] != "not_applicable"
    found_gap = "verified-sync: after each of 2 batches the sampler is at most "
    assert found_gap in verdicts["lora-weight-sync"]["evidence"]
    assert "with-calculator: " in verdicts["multi-step"]["evidence"]
