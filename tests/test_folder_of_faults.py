"""`make bench-faults CASES=folder`: anybody's cases, of which what does not load is one line."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.faults import case as cases_module
from benchmarks.faults import jobs, planted
from benchmarks.faults.case import Case, Task, load_cases, parts_of, readable_cases, told
from benchmarks.faults.located import parts_found
from benchmarks.faults.places import place_row
from benchmarks.faults.study import CASE, Outcome, choose, judge, part_arms
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.grpo.settings import STAGES
from tests.check_answer import case_answer
from tests.shared import ran
from tests.test_benchmark import HIGH, LOW, RUNS, outcomes

MODULE = """
STAGE = "clipped_objective"

def implementation(ratio, advantages, low, high, delta):
    from rlvr_debug.grpo.objective import clipped_objective
    return -clipped_objective(ratio, advantages, low, high, delta)
"""
STOPS = """
STAGE = "clipped_objective"

def implementation(*given):
    raise ValueError("two\\nlines")
"""
CASES = """
planted:
  turned: {what: the objective is negated, faults: [turned-round]}
  missing: {what: x, faults: [no-such-file]}
  raises: {what: x, faults: [raises]}
  nowhere: {what: x, faults: [nowhere]}
  misspelt: {what: x, training: {learning_rat: 1}}
  wrong-type: {what: x, training: {learning_rate: much}}
  other-key: {what: x, fault: [turned-round]}
  nothing: {what: x}
  no-cause: {what: x, faults: [turned-round], causes: [bad-luck]}
  short: {what: replies are short, rollouts: {max_new_tokens: 4}, training: {clip: 0.3}}
healthy:
  more-clipping: {what: another clip, training: {clip: 0.3}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    modules = {
        "turned_round": MODULE,
        "raises": "raise RuntimeError('two\\nlines')",
        "nowhere": MODULE.replace("clipped_objective", "objective"),
        "stops": STOPS,
    }
    (tmp_path / "cases.yaml").write_text(CASES, encoding="utf-8")
    monkeypatch.setattr(planted, "__path__", [str(tmp_path), *planted.__path__])
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, f"{planted.__name__}.{name}", raising=False)
    return tmp_path


def test_what_does_not_load_is_one_line_each_and_the_others_are_there(folder: Path) -> None:
    found, wrong = readable_cases(folder / "cases.yaml")
    assert set(found) == {"turned", "short", "more-clipping"}
    place = f"{folder}/cases.yaml: case"
    said = {
        "missing": "found fault no-such-file, expected a file no_such_file.py",
        "raises": "two lines",
        "nowhere": "no stage in nowhere 'objective'",
        "misspelt": "learning_rat",
        "wrong-type": "learning_rate",
        "other-key": "fault",
        "nothing": "nothing is planted",
        "no-cause": "no cause 'bad-luck'",
    }
    assert set(wrong) == set(said)
    for name, part in said.items():
        assert wrong[name].startswith(f"{place} '{name}' does not load: ")
        assert part in wrong[name]
        assert "\n" not in wrong[name]
    with pytest.raises(InputError, match="case 'missing' does not load"):
        load_cases(folder / "cases.yaml")


@pytest.mark.parametrize("text", ["[]", "planted: 3", "a: b: c", ""])
def test_a_file_that_holds_no_cases_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "cases.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"^\S+/cases.yaml: expected planted: and healthy:"):
        readable_cases(tmp_path / "cases.yaml")


def test_a_part_has_the_case_with_it_mended_and_the_control_with_it_alone(folder: Path) -> None:
    case = readable_cases(folder / "cases.yaml")[0]["short"]
    assert parts_of(case) == ["training.clip", "rollouts.max_new_tokens"]
    mended, alone = (told(case, arm) for arm in part_arms("rollouts.max_new_tokens"))
    assert (mended.training, mended.rollouts) == ({"clip": 0.3}, {})
    assert (alone.training, alone.rollouts) == ({}, {"max_new_tokens": 4})
    first = Case("x", "planted", (), "x", Task("gsm8k"), ("empty-optimizer",), first_rows=8)
    mended, alone = (told(first, arm) for arm in part_arms("rows"))
    assert (mended.first_rows, alone.first_rows, alone.faults) == (0, 8, ())
    mended, alone = (told(first, arm) for arm in part_arms("optimizer_step"))
    assert (mended.faults, mended.first_rows) == ((), 8)
    assert (alone.faults, alone.first_rows) == (("empty-optimizer",), 0)


def test_only_parts_that_no_chosen_arm_touches_have_arms_of_their_own() -> None:
    checked = case_answer("kl-penalty")
    names = [arm.name for arm in choose(checked, [], ["kl", "sync", "training.kl_beta"])]
    assert names[:3] == [arm.name for arm in choose(checked, [])]
    assert names[3:] == ["unnamed-sync", "unnamed-sync-alone"]
    assert {arm.swap for stage in STAGES for arm in part_arms(stage)} == {(s,) for s in STAGES}


# --- scores


def answered(arm: str, parts: list[str], mended: list[Outcome]) -> dict[str, Any]:
    arms = choose(case_answer(), ["kl-penalty"], parts)
    runs = RUNS | {a.name: outcomes(LOW, a.name) for a in arms if a.design == "repair"}
    runs |= {a.name: outcomes(HIGH, a.name) for a in arms if a.design == "alone"}
    found = judge(case_answer(), ["kl-penalty"], arms, {**runs, arm: mended})
    told_ = {name: getattr(found, name) for name in ("effects", "places", "validated")}
    verdicts = [vars(verdict) for verdict in found.verdicts]
    as_read: dict[str, Any] = json.loads(
        json.dumps({**told_, "verdicts": verdicts, "differs": parts})
    )
    return as_read


COST = {"cost": 0.5, "cost_low": 0.4, "cost_high": 0.6, "counts": True}
FREE = {**COST, "cost": 0.0, "counts": False}
TURNED = Case("t", "planted", (), "x", Task("gsm8k"), ("loss-negated-twice",))
HEALTHY = Case("h", "healthy", (), "x", Task("gsm8k"), (), {"clip": 0.3})
PARTS = ["clipped_objective"]
MENDED = "unnamed-clipped-objective"


def test_what_no_hypothesis_names_is_in_the_right_place_and_no_silence() -> None:
    row = place_row(TURNED, answered(MENDED, PARTS, outcomes(HIGH, "mended")), COST)
    assert (row["located"], row["place_right"], row["silent"]) == ("clipped_objective", True, False)
    assert (row["validated"], row["cause_right"], row["blamed"]) == ("", False, False)
    assert f"{MENDED}:+0.500[" in row["effects"]


def test_a_place_beside_the_planted_ones_is_wrong_and_in_a_healthy_case_blame() -> None:
    answer = answered("unnamed-training-clip", ["training.clip"], outcomes(HIGH, "mended"))
    row = place_row(TURNED, answer, COST)
    assert (row["located"], row["place_right"]) == ("training.clip", False)
    row = place_row(HEALTHY, answer, FREE)
    assert (row["blamed"], row["place_right"]) == (True, False)


# --- faults that raise


def test_a_fault_that_raises_in_training_is_a_line_in_place_of_outcomes(folder: Path) -> None:
    case = Case("stops", "planted", (), "x", Task("gsm8k"), ("stops",))
    job = {"told": json.dumps(asdict(told(case, CASE))), "seeds": "0"}
    outcomes_, tried = folder / "outcomes.json", folder / "tried.json"
    with pytest.raises(ValueError, match="two"):
        jobs._runs(outcomes_, **job, may_fail=False)
    jobs._runs(outcomes_, **job, may_fail=True)
    write_json(folder / "healthy.json", [{"seed": 0}])
    healthy = str(folder / "healthy.json")
    runs = {"case-01": [healthy, str(outcomes_)], "case-02": [healthy]}
    jobs._tried(tried, json.dumps(runs))
    assert read_json(tried) == {"case-01": "two lines"}
    with pytest.raises(InputError, match="this arm cannot be trained: two lines"):
        jobs._outcomes(outcomes_)


# --- the whole of it


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    place = ROOT / "benchmarks" / "faults"
    seeds = ("study_seeds=[0,1,2]", "count_seeds=[3,4]")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(place / "Snakefile")]
    command += ["--directory", str(folder / "work"), "--configfile", str(place / "config.yaml")]
    command += ["--config", f"folder={folder}", *seeds, "--cores", "2", *words]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    (folder / "work").mkdir(exist_ok=True)
    return ran(command, env=environment)


REWRITTEN = """
STAGE = "loss_mask"

def implementation(sampled, real):
    return ~(~sampled | ~real)
"""


@pytest.mark.heavy
def test_a_stage_written_anew_changes_nothing_and_a_changed_setting_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"prompts_per_step": 4, "steps": 2}
    monkeypatch.setitem(cases_module.SETTINGS, "gsm8k", short)
    (folder / "mask_by_logic.py").write_text(REWRITTEN, encoding="utf-8")
    rewritten = Case("x", "healthy", (), "x", Task("gsm8k"), ("mask-by-logic",))
    assert parts_found(told(rewritten, CASE))[0] == []
    unscaled = replace(HEALTHY, training={"scale_rewards": "none"})
    assert parts_found(told(unscaled, CASE))[0] == ["training.scale_rewards"]


@pytest.mark.heavy
def test_a_fault_of_somebody_s_is_located_and_scored(folder: Path) -> None:
    kept = (
        "planted:\n  turned: {what: x, faults: [turned-round]}\n  bad: {what: x, faults: [gone]}\n"
        "  stops: {what: x, faults: [stops]}\n"
    )
    (folder / "cases.yaml").write_text(kept, encoding="utf-8")
    done = snakemake(folder)
    assert done.returncode == 0, done.stderr
    [row] = pd.read_csv(folder / "work" / "results" / "places.csv").to_dict("records")
    assert (row["differs"], row["located"]) == ("clipped_objective", "clipped_objective")
    assert row["place_right"]
    assert not row["silent"]
    said = (folder / "work" / "results" / "summary.txt").read_text(encoding="utf-8").splitlines()
    *_, bad, stops = said
    assert bad.startswith(f"{folder}/cases.yaml: case 'bad' does not load: found fault gone")
    assert stops == f"{folder}/cases.yaml: case 'stops' cannot be trained: two lines"
