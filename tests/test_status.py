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
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import Rates
from rlvr_debug.study.resolved import resolve
from rlvr_debug.study.status import RunStatus, State, StudyStatus, ToDo, study_status
from rlvr_debug.verdicts.looks import look_file, write_look
from tests.test_workflow import ARMS, MINI

RATES = Rates({}, 1.0, 0.0, "made up")
NOTHING_ASKED = ToDo(frozenset(), 0.0)


def steps(*rewards: float) -> list[dict[str, float]]:
    return [{"step": n, "reward": reward} for n, reward in enumerate(rewards, 1)]


def timings(each: float, count: int) -> list[dict[str, float]]:
    return [{"step": n, "update": each / 2, "sampling": each / 2} for n in range(1, count + 1)]


class Mini:
    """A study of four trainings of four steps, which was begun."""

    def __init__(self, folder: Path) -> None:
        self.folder, overlay = folder, folder / "mini.yaml"
        training = {**MINI["training"], "steps": 4}
        overlay.write_text(yaml.safe_dump({**MINI, "training": training, "phases": "all"}))
        self.params = load_params(ROOT / "params.yaml", overlay)
        self.lock = folder / ".run.lock"
        write_text(self.lock, "")

    def look(self, to_do: ToDo = NOTHING_ASKED) -> StudyStatus:
        return study_status(resolve(self.params, ROOT), self.folder, to_do, RATES)

    def at_work(self) -> StudyStatus:
        """What is seen while somebody runs it."""
        with self.lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            return self.look()

    def run(self, arm: str) -> Path:
        return self.folder / "results" / "runs" / "musique" / arm / "0"

    def log(self, arm: str, text: str, rule: str = "train") -> Path:
        path = self.folder / "logs" / rule / "musique" / arm / "0.log"
        write_text(path, text)
        return path

    def checkpoint(self, arm: str, *rewards: float, name: str = "00000001") -> Path:
        place = self.run(arm) / "checkpoint" / name
        write_jsonl(place / "metrics.jsonl", steps(*rewards))
        return place

    def train(self, arm: str) -> None:
        write_jsonl(self.run(arm) / "metrics.jsonl", steps(0.1, 0.2, 0.3, 0.4))

    def finish(self, *arms: str) -> None:
        for arm in arms:
            self.train(arm)
            write_json(self.run(arm) / "heldout.json", {})


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    return Mini(tmp_path)


def test_each_training_is_in_the_state_that_its_files_say(mini: Mini) -> None:
    case, control, random, kl = ARMS
    mini.finish(case)
    mini.train(control)
    # a checkpoint replaces the one before it; what begins with a dot is not whole
    mini.checkpoint(random, 0.5)
    mini.checkpoint(random, 0.5, 0.7, name="00000002")
    mini.checkpoint(random, 0, 0, 0, name=".3.1.tmp")
    mini.log(random, "")
    mini.log(kl, "error: rows: 2 training rows, expected more\n")
    said = mini.look()
    assert {run.arm: (run.state, run.step, run.reward) for run in said.runs} == {
        case: ("done", 4, pytest.approx(0.25)),
        control: ("trained", 4, pytest.approx(0.25)),
        random: ("interrupted", 2, pytest.approx(0.6)),
        kl: ("failed", 0, None),
    }
    assert (said.at_work, said.seconds_left) == (False, None)

    mini.log(control, "", "evaluate_run")
    now = mini.at_work()
    assert (now.at_work, now.at_a_time) == (True, 2)
    states = {run.arm: run.state for run in now.runs}
    assert (states[random], states[control]) == ("training", "evaluating")
    assert not mini.look().at_work


def test_trainings_of_an_arm_that_are_equally_far_share_a_line_and_later_ones_are_asked_for() -> (
    None
):
    def run(arm: str, seed: int, state: State, step: int) -> RunStatus:
        return RunStatus("musique", arm, seed, state, step, 4, None, None)

    runs = [
        *(run("case", seed, "done", 4) for seed in range(3)),
        *(run("control", 0, "training", 2), run("control", 1, "training", 3)),
        *(run("case", seed, "later", 0) for seed in range(3, 8)),
    ]
    said = StudyStatus("mini", True, 2, runs, {})
    shared = [[(one.arm, one.seed) for one in line] for line in said.lines(verbose=False)]
    assert shared == [
        [("control", 0)],
        [("control", 1)],
        [("case", 0), ("case", 1), ("case", 2)],
    ]
    assert sorted(said.lines(verbose=True), key=str) == sorted([[one] for one in runs], key=str)


def test_a_hypothesis_is_tested_while_its_own_arms_are_under_way(mini: Mini) -> None:
    def state() -> str:
        return mini.look().hypotheses["kl-penalty"]

    assert state() == "pending"
    mini.finish("case", "control")
    assert state() == "pending"
    mini.checkpoint(ARMS[-1], 0.5)
    assert state() == "testing"
    mini.finish(ARMS[-1])
    assert state() == "tested"


def test_a_bug_s_traceback_is_a_failure_too(mini: Mini) -> None:
    mini.log("case", "Traceback (most recent call last):\nValueError\n")
    assert mini.look().count() == {"failed": 1, "waiting": len(ARMS) - 1}


def test_logs_of_an_earlier_run_of_the_study_say_nothing(mini: Mini) -> None:
    os.utime(mini.log("case", "error: no space\n"), (1, 1))
    assert mini.look().count() == {"waiting": len(ARMS)}


def test_a_training_that_ended_and_whose_code_changed_since_was_not_interrupted(mini: Mini) -> None:
    mini.finish(*ARMS)
    for arm in ARMS:
        mini.log(arm, "")
    jobs = frozenset(("train", f"musique/{arm}/0") for arm in ARMS)
    assert mini.look(ToDo(jobs, time.time() + 60)).count() == {"waiting": len(ARMS)}


def test_results_that_snakemake_would_make_again_are_not_done_until_they_are_made(
    mini: Mini,
) -> None:
    mini.finish(*ARMS)
    jobs = {("train", "musique/case/0"), ("evaluate_run", "musique/control/0")}
    to_do = ToDo(frozenset(jobs), time.time() + 1)
    states = {run.arm: run.state for run in mini.look(to_do).runs}
    assert states == {**dict.fromkeys(ARMS, "done"), "case": "waiting", "control": "trained"}
    for name in ("metrics.jsonl", "heldout.json"):
        os.utime(mini.run("case") / name, (to_do.asked + 1,) * 2)
    assert mini.look(to_do).runs[0].state == "done"


def test_a_program_s_rows_are_read_while_it_writes_them(mini: Mini) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in steps(0.2, 0.4))
    write_text(mini.run("case") / "attempt/out/metrics.jsonl", rows + '{"step": 3, "rew')
    run = mini.look().runs[0]
    assert run.step == 2
    assert run.reward == pytest.approx(0.3)


def test_the_time_left_falls_with_every_step_and_ends_at_nothing(mini: Mini) -> None:
    found = [mini.look().processor_seconds_left]
    for arm in ARMS:
        mini.checkpoint(arm, 0.1, 0.2)
        found.append(mini.look().processor_seconds_left)
        mini.train(arm)
        found.append(mini.look().processor_seconds_left)
        mini.finish(arm)
        found.append(mini.look().processor_seconds_left)
    told = [seconds for seconds in found if seconds is not None]
    assert found == sorted(set(told), reverse=True)
    assert found[-1] == 0


def test_a_run_s_own_speed_counts_then_that_of_others_and_of_failures_none_at_work(
    mini: Mini,
) -> None:
    mini.finish("case")
    write_jsonl(mini.run("case") / "timings.jsonl", timings(2, 4))
    slow = mini.checkpoint("control", 0.1, 0.2, 0.3)
    write_jsonl(slow / "timings.jsonl", timings(10, 3))
    mini.log("control", "")
    mini.log("kl-beta-0", "error: no space\n")
    left = {run.arm: run.seconds_left for run in mini.look().runs}
    own, evaluation = 10, RATES.evaluation
    # the mean of the two speeds that were measured here
    others = 4 * 6
    assert left["case"] == 0
    assert left["control"] == pytest.approx(own + evaluation)
    assert left["random-reward"] == left["kl-beta-0"] == pytest.approx(others + evaluation)

    os.utime(mini.lock, (1, 1))
    now, both = mini.at_work(), own + others + 2 * evaluation
    assert now.at_a_time == 1
    assert now.processor_seconds_left == now.seconds_left == pytest.approx(both)


def test_before_anything_is_measured_the_usual_seconds_count(mini: Mini) -> None:
    """Of a training half of whose steps are done, half of its seconds are left."""
    mini.params = replace(mini.params, training=replace(mini.params.training, group_size=4))
    mini.checkpoint("control", 0.1, 0.2)
    left = {run.arm: run.seconds_left for run in mini.look().runs}
    whole = RATES.training(next(run for run in runs(mini.params) if run.arm == "control"))
    assert whole > 4
    assert left["control"] == pytest.approx(whole / 2 + RATES.evaluation)
    assert left["random-reward"] == pytest.approx(whole + RATES.evaluation)


def test_of_a_model_that_was_never_timed_no_time_is_told(tmp_path: Path) -> None:
    real = load_params(ROOT / "params.yaml", ROOT / "studies" / "qwen2.5-7b.yaml")
    found = study_status(resolve(real, ROOT), tmp_path, NOTHING_ASKED, RATES)
    assert found.processor_seconds_left is None
    assert json.loads(json.dumps(found.to_json()))["seconds_left"] is None


def test_a_later_phase_is_not_waited_for_until_it_is_needed(mini: Mini) -> None:
    mini.params = replace(mini.params, phases="gated")
    assert mini.look().count() == {"waiting": 3, "later": 1}
    study, gate = resolve(mini.params, ROOT), look_file(mini.folder / "results", 1)
    first = study.looked.first()
    write_look(replace(study.looked, gated=False).first(), gate)
    assert mini.look().count() == {"waiting": 4}
    write_look(replace(first, number=1, more=False, causes=("kl-penalty",)), gate)
    mini.finish("case", "control", "random-reward")
    found = mini.look()
    assert found.count() == {"done": 3, "later": 1}
    assert found.processor_seconds_left == 0
