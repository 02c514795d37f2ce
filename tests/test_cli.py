"""The command line, as a process of its own: what it prints, its exit status, and how far a study is said to be."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.arms import runs
from rlvr_debug.config import ROOT, load_params
from rlvr_debug.files import write_json, write_jsonl, write_text
from rlvr_debug.reporting.plan import Rates
from rlvr_debug.reporting.status import StudyStatus, study_status
from tests.test_workflow import MINI, Project, copy

COMMANDS = ("run", "plan", "probe", "status", "report", "compare", "new-hypothesis", "diagnose")
LOG = ROOT / "tests" / "logs" / "dead-groups"


def call(
    *words: str, root: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "100", **(environment or {})}
    return subprocess.run(
        [sys.executable, "-m", "rlvr_debug.cli", *words],
        cwd=root,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_names_the_command(command: str) -> None:
    done = call(command, "--help")
    assert done.returncode == 0
    assert f"Example: rlvr-debug {command}" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--overlay", "none.yaml"], "error: none.yaml: No such file or directory, expected parameters in YAML"),
        (["plan", "--cores", "none"], "error: --cores: found 'none', expected all or a number from 1"),
        (["run", "--profile", "none"], "error: profile 'none': expected default, gpu, slurm, "),
        (["status", "--overlay", "params.yaml"], "error: params.yaml: key 'study' is 'default' as in "),
        (["compare", "no-such-revision"], "error: "),
        (["new-hypothesis", "Learning Rate"], "error: slug is 'Learning Rate', expected words of a to z"),
        (["new-hypothesis", "kl-penalty"], "error: "),
        (["new-hypothesis", "x", "--kind", "effect"], "error: --kind: found 'effect', expected cause or localiser"),
        (["diagnose", "none"], "error: none: "),
        (["diagnose", str(LOG), "--trainer", "verl"], "error: --trainer: found 'verl', expected trl or command"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(words: list[str], said: str) -> None:
    done = call(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


def test_a_misspelt_command_or_option_is_told() -> None:
    for words in (["rum"], ["run", "--overlya", "x"]):
        done = call(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert words[-1 if len(words) == 1 else 1] in done.stderr


def test_diagnose_says_the_same_as_its_script() -> None:
    script = [sys.executable, "scripts/diagnose.py", str(LOG), "--json"]
    expected = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert call("diagnose", str(LOG), "--json").stdout == expected


# --- a study


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copy(ROOT, tmp_path_factory.mktemp("project"))


def in_project(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return call(
        *words, "--overlay", "mini.yaml", root=project.root, environment=project.environment
    )


@pytest.mark.slow
def test_a_study_from_nothing_to_its_report(project: Project) -> None:
    """One after the other, for each needs what the one before it left."""
    early = in_project(project, "report")
    assert early.returncode == 2
    assert early.stderr.endswith("has no report yet (rlvr-debug run --overlay mini.yaml)\n")

    probed = in_project(project, "probe", "--json", "--cores", "2")
    assert probed.returncode == 0, probed.stderr
    assert json.loads(probed.stdout)["context-sensitivity"]["passed"] is False

    before = json.loads(in_project(project, "status", "--json").stdout)
    assert {run["state"] for run in before["runs"]} == {"waiting"}

    done = in_project(project, "run", "--cores", "2")
    assert done.returncode == 0, done.stderr
    *verdicts, place = done.stdout.splitlines()
    assert (project.root / place).resolve() == (project.results / "report.html").resolve()
    assert any(line.startswith("kl-penalty") for line in verdicts)
    # not a terminal: a line for each tenth, and nothing that moves
    assert done.stderr.splitlines()[-1].startswith("study mini: ")
    assert len(done.stderr.splitlines()) <= 11
    assert "\x1b" not in done.stdout + done.stderr

    after = json.loads(in_project(project, "status", "--json").stdout)
    assert {run["state"] for run in after["runs"]} == {"done"}
    assert after["seconds_left"] == 0
    assert in_project(project, "report").stdout.strip() == place

    again = in_project(project, "run", "--cores", "2")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert again.stderr == "study mini: 0 of 0 jobs\n"


@pytest.mark.slow
def test_a_job_that_fails_is_status_1_and_its_error_stands_last(tmp_path: Path) -> None:
    project = copy(ROOT, tmp_path)
    project.overlay({**MINI, "training": {**MINI["training"], "prompts_per_step": 1000}})
    done = in_project(project, "run", "--cores", "2")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "expected at least training.prompts_per_step (1000)" in done.stderr
    assert "Traceback" not in done.stderr


# --- how far a study is

RATES = Rates({}, 1.0, 0.0, "made up")


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    overlay = tmp_path / "mini.yaml"
    overlay.write_text(json.dumps({**MINI, "training": {**MINI["training"], "steps": 4}}))
    return load_params(ROOT / "params.yaml", overlay)


def look(params: dict[str, Any], folder: Path) -> StudyStatus:
    return study_status(params, folder, RATES)


def steps(*rewards: float) -> list[dict[str, float]]:
    return [{"step": n, "reward": reward} for n, reward in enumerate(rewards, 1)]


def test_each_training_is_in_the_state_that_its_files_say(
    params: dict[str, Any], tmp_path: Path
) -> None:
    arms = [run.arm for run in runs(params) if run.arm == run.trained_as]
    assert len(arms) >= 4
    place = {arm: tmp_path / "results" / "runs" / "musique" / arm / "0" for arm in arms}
    log = {arm: tmp_path / "logs" / "train" / "musique" / arm / "0.log" for arm in arms}
    write_text(tmp_path / ".run.lock", "")
    write_jsonl(place[arms[0]] / "metrics.jsonl", steps(0.1, 0.2, 0.3, 0.4))
    write_json(place[arms[0]] / "heldout.json", {})
    write_jsonl(place[arms[1]] / "metrics.jsonl", steps(0.1, 0.2, 0.3, 0.4))
    # a checkpoint replaces the one before it; what begins with a dot is not whole
    write_jsonl(place[arms[2]] / "checkpoint" / "00000001" / "metrics.jsonl", steps(0.5))
    write_jsonl(place[arms[2]] / "checkpoint" / "00000002" / "metrics.jsonl", steps(0.5, 0.7))
    write_jsonl(place[arms[2]] / "checkpoint" / ".3.1.tmp" / "metrics.jsonl", steps(0, 0, 0))
    write_text(log[arms[2]], "")
    write_text(log[arms[3]], "error: rows: 2 training rows, expected more\n")
    found = {run.arm: run for run in look(params, tmp_path).runs}
    assert [found[arm].state for arm in arms[:4]] == ["done", "evaluating", "interrupted", "failed"]
    assert {found[arm].state for arm in arms[4:]} <= {"waiting"}
    assert found[arms[0]].step == 4
    assert found[arms[0]].reward == pytest.approx(0.25)
    assert found[arms[2]].step == 2
    assert found[arms[2]].reward == pytest.approx(0.6)
    assert found[arms[3]].reward is None

    with (tmp_path / ".run.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        now = look(params, tmp_path)
    assert now.at_work
    assert {run.arm: run.state for run in now.runs}[arms[2]] == "training"
    assert not look(params, tmp_path).at_work


def test_the_time_left_falls_with_every_step_and_ends_at_nothing(
    params: dict[str, Any], tmp_path: Path
) -> None:
    left = [look(params, tmp_path).seconds_left]
    for run in look(params, tmp_path).runs:
        place = tmp_path / "results" / "runs" / run.environment / run.arm / "0"
        write_jsonl(place / "checkpoint" / "00000002" / "metrics.jsonl", steps(0.1, 0.2))
        left.append(look(params, tmp_path).seconds_left)
        write_jsonl(place / "metrics.jsonl", steps(0.1, 0.2, 0.3, 0.4))
        left.append(look(params, tmp_path).seconds_left)
        write_json(place / "heldout.json", {})
        left.append(look(params, tmp_path).seconds_left)
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == len(left)
    assert left[-1] == 0
