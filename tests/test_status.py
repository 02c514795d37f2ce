"""How far a study is said to be: the state of each training, and how long to go."""

import fcntl
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_json, write_jsonl, write_text
from rlvr_debug.study.arms import runs
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import Rates
from rlvr_debug.study.resolved import resolve
from rlvr_debug.study.status import StudyStatus, ToDo, study_status
from rlvr_debug.trainers.base import Run
from rlvr_debug.verdicts.looks import look_file, write_look
from tests.test_workflow import ARMS, MINI

RATES = Rates({}, 1.0, 0.0, "made up")
NOTHING_ASKED = ToDo(frozenset(), 0.0)


@pytest.fixture
def params(tmp_path: Path) -> Params:
    overlay = tmp_path / "mini.yaml"
    training = {**MINI["training"], "steps": 4}
    overlay.write_text(yaml.safe_dump({**MINI, "training": training, "phases": "all"}))
    return load_params(ROOT / "params.yaml", overlay)


def look(params: Params, folder: Path, to_do: ToDo = NOTHING_ASKED) -> StudyStatus:
    return study_status(resolve(params, ROOT), folder, to_do, RATES)


def steps(*rewards: float) -> list[dict[str, float]]:
    return [{"step": n, "reward": reward} for n, reward in enumerate(rewards, 1)]


def seconds(each: float, count: int) -> list[dict[str, float]]:
    return [{"step": n, "update": each / 2, "sampling": each / 2} for n in range(1, count + 1)]


def place_of(folder: Path, run: Run | str) -> Path:
    arm = run if isinstance(run, str) else run.arm
    return folder / "results" / "runs" / "musique" / arm / "0"


def log_of(folder: Path, arm: str, rule: str = "train") -> Path:
    return folder / "logs" / rule / "musique" / arm / "0.log"


def finish(folder: Path, arm: str) -> None:
    write_jsonl(place_of(folder, arm) / "metrics.jsonl", steps(0.1, 0.2, 0.3, 0.4))
    write_json(place_of(folder, arm) / "heldout.json", {})


def test_each_training_is_in_the_state_that_its_files_say(params: Params, tmp_path: Path) -> None:
    case, control, random, kl = ARMS
    write_text(tmp_path / ".run.lock", "")
    finish(tmp_path, case)
    write_jsonl(place_of(tmp_path, control) / "metrics.jsonl", steps(0.1, 0.2, 0.3, 0.4))
    # a checkpoint replaces the one before it; what begins with a dot is not whole
    checkpoints = place_of(tmp_path, random) / "checkpoint"
    write_jsonl(checkpoints / "00000001" / "metrics.jsonl", steps(0.5))
    write_jsonl(checkpoints / "00000002" / "metrics.jsonl", steps(0.5, 0.7))
    write_jsonl(checkpoints / ".3.1.tmp" / "metrics.jsonl", steps(0, 0, 0))
    write_text(log_of(tmp_path, random), "")
    write_text(log_of(tmp_path, kl), "error: rows: 2 training rows, expected more\n")
    found = {run.arm: run for run in look(params, tmp_path).runs}
    assert {arm: run.state for arm, run in found.items()} == {
        case: "done",
        control: "trained",
        random: "interrupted",
        kl: "failed",
    }
    assert (found[case].step, found[random].step) == (4, 2)
    assert found[case].reward == pytest.approx(0.25)
    assert found[random].reward == pytest.approx(0.6)
    assert found[kl].reward is None
    assert look(params, tmp_path).seconds_left is None

    write_text(log_of(tmp_path, control, "evaluate_run"), "")
    with (tmp_path / ".run.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        now = look(params, tmp_path)
    states = {run.arm: run.state for run in now.runs}
    assert (now.at_work, now.at_a_time) == (True, 2)
    assert (states[random], states[control]) == ("training", "evaluating")
    assert not look(params, tmp_path).at_work


def test_a_hypothesis_is_tested_while_its_own_arms_are_under_way(
    params: Params, tmp_path: Path
) -> None:
    def state() -> str:
        return look(params, tmp_path).hypotheses["kl-penalty"]

    assert state() == "pending"
    finish(tmp_path, "case")
    finish(tmp_path, "control")
    assert state() == "pending"
    checkpoint = place_of(tmp_path, ARMS[-1]) / "checkpoint" / "00000001"
    write_jsonl(checkpoint / "metrics.jsonl", steps(0.5))
    assert state() == "testing"
    finish(tmp_path, ARMS[-1])
    assert state() == "tested"


def test_a_bug_s_traceback_is_a_failure_too(params: Params, tmp_path: Path) -> None:
    write_text(log_of(tmp_path, "case"), "Traceback (most recent call last):\nValueError\n")
    assert look(params, tmp_path).count()["failed"] == 1


def test_logs_of_an_earlier_run_of_the_study_say_nothing(params: Params, tmp_path: Path) -> None:
    write_text(log_of(tmp_path, "case"), "error: no space\n")
    os.utime(log_of(tmp_path, "case"), (1, 1))
    write_text(tmp_path / ".run.lock", "")
    assert look(params, tmp_path).count() == {"waiting": len(ARMS)}


def test_a_training_that_ended_and_whose_code_changed_since_was_not_interrupted(
    params: Params, tmp_path: Path
) -> None:
    write_text(tmp_path / ".run.lock", "")
    for arm in ARMS:
        finish(tmp_path, arm)
        write_text(log_of(tmp_path, arm), "")
    jobs = frozenset(("train", f"musique/{arm}/0") for arm in ARMS)
    assert look(params, tmp_path, ToDo(jobs, time.time() + 60)).count() == {"waiting": len(ARMS)}


def test_results_that_snakemake_would_make_again_are_not_done_until_they_are_made(
    params: Params, tmp_path: Path
) -> None:
    for arm in ARMS:
        finish(tmp_path, arm)
    jobs = {("train", "musique/case/0"), ("evaluate_run", "musique/control/0")}
    to_do = ToDo(frozenset(jobs), time.time() + 1)
    states = {run.arm: run.state for run in look(params, tmp_path, to_do).runs}
    assert states == {**dict.fromkeys(ARMS, "done"), "case": "waiting", "control": "trained"}
    finish(tmp_path, "case")
    for name in ("metrics.jsonl", "heldout.json"):
        os.utime(place_of(tmp_path, "case") / name, (to_do.asked + 1,) * 2)
    assert look(params, tmp_path, to_do).runs[0].state == "done"


def test_a_program_s_rows_are_read_while_it_writes_them(params: Params, tmp_path: Path) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in steps(0.2, 0.4))
    write_text(place_of(tmp_path, "case") / "attempt/out/metrics.jsonl", rows + '{"step": 3, "rew')
    run = look(params, tmp_path).runs[0]
    assert run.step == 2
    assert run.reward == pytest.approx(0.3)


def test_the_time_left_falls_with_every_step_and_ends_at_nothing(
    params: Params, tmp_path: Path
) -> None:
    def left() -> float:
        found = look(params, tmp_path).processor_seconds_left
        assert found is not None
        return found

    found = [left()]
    for arm in ARMS:
        place = place_of(tmp_path, arm)
        write_jsonl(place / "checkpoint" / "00000002" / "metrics.jsonl", steps(0.1, 0.2))
        found.append(left())
        write_jsonl(place / "metrics.jsonl", steps(0.1, 0.2, 0.3, 0.4))
        found.append(left())
        write_json(place / "heldout.json", {})
        found.append(left())
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    assert found[-1] == 0


def test_a_run_s_own_speed_counts_then_that_of_others_and_of_failures_none_at_work(
    params: Params, tmp_path: Path
) -> None:
    finish(tmp_path, "case")
    write_jsonl(place_of(tmp_path, "case") / "timings.jsonl", seconds(2, 4))
    slow = place_of(tmp_path, "control") / "checkpoint" / "00000003"
    write_jsonl(slow / "metrics.jsonl", steps(0.1, 0.2, 0.3))
    write_jsonl(slow / "timings.jsonl", seconds(10, 3))
    write_text(log_of(tmp_path, "control"), "")
    write_text(log_of(tmp_path, "kl-beta-0"), "error: no space\n")
    left = {run.arm: run.seconds_left for run in look(params, tmp_path).runs}
    evaluation = RATES.evaluation
    assert left["case"] == 0
    assert left["control"] == pytest.approx(10 + evaluation)
    # the mean of the two speeds that were measured here
    assert left["random-reward"] == left["kl-beta-0"] == pytest.approx(4 * 6 + evaluation)

    write_text(tmp_path / ".run.lock", "")
    os.utime(tmp_path / ".run.lock", (1, 1))
    with (tmp_path / ".run.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        now = look(params, tmp_path)
    both = 10 + 4 * 6 + 2 * evaluation
    assert now.at_a_time == 1
    assert now.processor_seconds_left == now.seconds_left == pytest.approx(both)


def test_before_anything_is_measured_the_usual_seconds_count(
    params: Params, tmp_path: Path
) -> None:
    """Of a training half of whose steps are done, half of its seconds are left."""
    params = replace(params, training=replace(params.training, group_size=4))
    write_jsonl(
        place_of(tmp_path, "control") / "checkpoint" / "00000002" / "metrics.jsonl", steps(0.1, 0.2)
    )
    left = {run.arm: run.seconds_left for run in look(params, tmp_path).runs}
    whole = RATES.training(next(run for run in runs(params) if run.arm == "control"))
    assert whole > 4
    assert left["control"] == pytest.approx(whole / 2 + RATES.evaluation)
    assert left["random-reward"] == pytest.approx(whole + RATES.evaluation)


def test_of_a_model_that_was_never_timed_no_time_is_told(tmp_path: Path) -> None:
    real = load_params(ROOT / "params.yaml", ROOT / "studies" / "qwen2.5-7b.yaml")
    found = look(real, tmp_path)
    assert found.processor_seconds_left is None
    assert json.loads(json.dumps(found.to_json()))["seconds_left"] is None


def test_a_later_phase_is_not_waited_for_until_it_is_needed(params: Params, tmp_path: Path) -> None:
    gated = replace(params, phases="gated")
    assert look(gated, tmp_path).count() == {"waiting": 3, "later": 1}
    study, gate = resolve(gated, ROOT), look_file(tmp_path / "results", 1)
    first = study.looked.first()
    write_look(replace(study.looked, gated=False).first(), gate)
    assert look(gated, tmp_path).count() == {"waiting": 4}
    write_look(replace(first, number=1, more=False, causes=("kl-penalty",)), gate)
    for arm in ("case", "control", "random-reward"):
        finish(tmp_path, arm)
    found = look(gated, tmp_path)
    assert found.count() == {"done": 3, "later": 1}
    assert found.processor_seconds_left == 0
