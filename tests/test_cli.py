"""The command line, as a process of its own: what it prints, its exit status, and how far a study is said to be."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import app, main
from rlvr_debug.files import write_json, write_jsonl, write_text
from rlvr_debug.study.arms import runs
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import Rates
from rlvr_debug.study.resolved import resolve
from rlvr_debug.study.status import StudyStatus, ToDo, study_status
from rlvr_debug.trainers.base import Run
from tests.in_process import called
from tests.test_workflow import (
    ARMS,
    MINI,
    Project,
    copy,
    copy_finished,
    end,
    finished_mini,
    wait_for,
)

# in the order of --help
COMMANDS = (
    *(
        "run",
        "check-case",
        "check-program",
        "check",
        "plan",
        "status",
        "report",
        "compare",
        "history",
    ),
    *("plots", "new-hypothesis", "diagnose", "track", "prune", "unlock", "clean"),
)
LOG = ROOT / "tests" / "logs" / "dead-groups"
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rlvr_debug.cli", *words]


def call(
    *words: str, root: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "100", **(environment or {})}
    return subprocess.run(
        command(*words),
        cwd=root,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, value)] = project["scripts"].items()
    assert (name, EntryPoint(name, value, "console_scripts").load()) == ("rlvr-debug", main)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_are_commands_with_options_that_there_are(name: str) -> None:
    said = CliRunner().invoke(app, [name, "--help"]).stdout
    examples = [line.split() for line in said.partition("Examples:")[2].splitlines() if line]
    assert examples
    assert all(words[:2] == ["rlvr-debug", name] for words in examples)
    for option in {word for words in examples for word in words if word.startswith("--")}:
        assert f" {option} " in said.partition("Examples:")[0]


def test_the_list_of_commands_cuts_no_line_short() -> None:
    said = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    listed = said.partition("Commands:")[2].partition("\n\n")[0].splitlines()[1:]
    assert tuple(line.split()[0] for line in listed) == COMMANDS
    assert "..." not in said.partition("Commands:")[2]


def test_the_page_has_every_command_and_says_which_print_json() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `([a-z-]+)[^`]*` \|.*\| (yes)? ?\|$", page)
    told = {name: bool(json) for name, json in rows if name in COMMANDS}
    helps = {name: CliRunner().invoke(app, [name, "--help"]).stdout for name in COMMANDS}
    assert told == {name: "--json " in said for name, said in helps.items()}
    for name in COMMANDS:
        assert f"$ rlvr-debug {name}" in page
    options = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", page)) - {"--help", "--verbose"}
    assert all(any(f"{option} " in said for said in helps.values()) for option in options)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--overlay", "none.yaml"], "error: none.yaml: No such file or directory, expected parameters in YAML"),
        (["plan", "--cores", "none"], "error: --cores: found 'none', expected all or a number from 1"),
        (["run", "studies/smoke.yaml"], "error: run: found 'studies/smoke.yaml', expected it after -- if it is "),
        (["run", "--cores", "none"], "error: --cores: found 'none', expected all or a number from 1"),
        (["check-case", "--overlay", "none.yaml"], "error: none.yaml: No such file or directory"),
        (["status", "--watch", "--json"], "error: --watch: found with --json, expected one of the two"),
        (["run", "--profile", "none"], "error: profile 'none': expected default, gpu, slurm, "),
        (["status", "--overlay", "params.yaml"], "error: params.yaml: key 'study' is 'default' as in "),
        (["compare", "no-such-revision"], "error: "),
        (["new-hypothesis", "Learning Rate"], "error: slug is 'Learning Rate', expected words of a to z"),
        (["new-hypothesis", "kl-penalty"], "error: "),
        (["new-hypothesis", "x", "--kind", "effect"], "error: --kind: found 'effect', expected cause or localiser"),
        (["diagnose", "none"], "error: none: "),
        (["diagnose", str(LOG), "--trainer", "verl"], "error: --trainer: found 'verl', expected command or trl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(words: list[str], said: str) -> None:
    done = called(main, "rlvr-debug", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["rum"], ["run", "--overlya"], ["diagnose"], ["compare"]])
def test_a_misspelt_command_or_option_is_told(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Usage: ")
    assert "Error: " in done.stderr
    assert words[-1] in done.stderr or "Missing argument" in done.stderr


def test_whoever_reads_only_the_beginning_is_not_told_of_a_broken_pipe() -> None:
    words = " ".join(command("diagnose", str(LOG), "--json"))
    done = subprocess.run(
        ["bash", "-c", f"{words} | head -1"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_comparing_a_revision_with_itself_is_a_line_or_json_without_differences(
    tmp_path: Path,
) -> None:
    out = tmp_path / "curves.svg"
    words = ("rlvr-debug", "compare", "HEAD", "HEAD", "--out", str(out))
    said = called(main, *words)
    assert said.stdout == "HEAD and HEAD have the same verdicts, metrics, params and curves.\n"
    found = json.loads(called(main, *words, "--json").stdout)
    assert found == {
        "old": "HEAD",
        "new": "HEAD",
        "chart": None,
        "verdicts": {},
        "metrics": {},
        "params": {},
    }
    assert not out.exists()


# --- a study that has not begun, and what files of one are said to be


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copy(ROOT, tmp_path_factory.mktemp("project"))


def in_project(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return call(
        *words, "--overlay", "mini.yaml", root=project.root, environment=project.environment
    )


def test_plan_says_the_same_in_words_and_in_json(project: Project) -> None:
    text = in_project(project, "plan", "--cores", "2").stdout
    found = json.loads(in_project(project, "plan", "--cores", "2", "--json").stdout)
    assert (found["study"], found["trainings_left"]) == ("mini", len(ARMS))
    assert found["jobs"]["train"] == found["whole"]["trainings"] == len(ARMS)
    [row] = [line for line in text.splitlines() if line.startswith("minutes on 2 cores")]
    assert row.split()[-2:] == [f"{found[part]['seconds'] / 60:.1f}" for part in ("whole", "left")]
    assert not project.results.exists()


@pytest.fixture
def failed(tmp_path: Path) -> Project:
    """A study that nobody is at work on, and of which one training refused its input."""
    project = copy(ROOT, tmp_path)
    write_text(project.study / ".run.lock", "")
    write_text(project.study / "logs/train/musique/case/0.log", "error: rows: 2, expected more\n")
    return project


def on_a_terminal(project: Project, *words: str, **variables: str) -> str:
    ours, theirs = pty.openpty()
    environment = {**project.environment, "TERM": "xterm-256color", **variables}
    with subprocess.Popen(
        command(*words), cwd=project.root, env=environment, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while more := os.read(ours, 65536):
                said += more
        except OSError:  # Linux' way to say that the other side is closed
            pass
    os.close(ours)
    assert process.returncode == 0, said
    return said.decode()


@pytest.mark.heavy
def test_colours_are_for_terminals_and_for_who_wants_them(failed: Project) -> None:
    words = ("status", "--overlay", "mini.yaml")
    said = on_a_terminal(failed, *words)
    assert COLOUR.search(said)
    assert not COLOUR.search(on_a_terminal(failed, *words, NO_COLOR="1"))
    piped = in_project(failed, "status")
    assert "\x1b" not in piped.stdout + piped.stderr
    assert "1 failed, 3 waiting" in piped.stdout
    assert "1 failed, 3 waiting" in re.sub(r"\x1b\[[0-9;]*m", "", said)


def test_a_report_that_is_not_there_yet_is_one_line_with_the_command_for_it(tmp_path: Path) -> None:
    overlay = tmp_path / "never.yaml"
    overlay.write_text("study: never-run\n")
    done = call("report", "--overlay", str(overlay))
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line == (
        "error: studies/never-run/results/report.html: study never-run has no report yet, expected that "
        f"of a finished study (rlvr-debug run --overlay {overlay})"
    )


@pytest.fixture
def held(failed: Project) -> Iterator[Project]:
    """That study, as if a run of it were at work."""
    with (failed.study / ".run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield failed


def started(project: Project, *words: str, ignores: bool = False) -> subprocess.Popen[str]:
    """ignores: Ctrl-C, as nohup and a script's background jobs do, with all that they start."""
    return subprocess.Popen(
        command(*words, "--overlay", "mini.yaml"),
        cwd=project.root,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # whatever the tests were started by
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_IGN if ignores else signal.default_int_handler
        ),
    )


def watched(project: Project) -> subprocess.Popen[str]:
    return started(project, "status", "--watch")


@pytest.mark.heavy
def test_watching_into_a_pipe_is_a_line_for_each_change(failed: Project) -> None:
    with (failed.study / ".run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = watched(failed)
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            write_text(failed.study / "logs/train/musique/control/0.log", "")
            second = process.stdout.readline()
            fcntl.flock(lock, fcntl.LOCK_UN)
            *_, last = process.communicate(timeout=120)[0].splitlines()
        finally:
            end(process)
    assert first.startswith("study mini: at work: 1 failed, 3 waiting; about ")
    assert second.startswith("study mini: at work, 1 at a time: 1 training, 1 failed, 2 waiting; ")
    assert last.startswith("study mini: not at work: 1 failed, 1 interrupted, 2 waiting; about ")
    assert process.returncode == 0


@pytest.mark.heavy
def test_ctrl_c_while_watching_is_status_130(held: Project) -> None:
    process = watched(held)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        end(process)
    assert (process.returncode, said) == (130, "interrupted\n")


@pytest.mark.heavy
def test_a_job_with_a_bug_is_status_1_and_a_line_that_names_its_log(failed: Project) -> None:
    (failed.root / "scripts" / "prepare_data.py").write_text("raise ValueError('broken')\n")
    done = in_project(failed, "run", "--cores", "1")
    assert (done.returncode, done.stdout) == (1, "")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [error.rpartition("/logs/")[2] for error in errors] == [
        "prepare_data/musique.log: ValueError: broken"
    ]
    assert "Traceback" not in done.stderr


def test_what_stops_snakemake_itself_is_status_1_and_said(failed: Project) -> None:
    (failed.root / "workflow" / "Snakefile").write_text("raise ValueError('broken')\n")
    done = in_project(failed, "run", "--cores", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ValueError" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: Snakemake ended with status 1: ")


# --- a study


@pytest.mark.heavy
def test_a_study_of_which_a_run_is_missing_is_taken_to_its_report(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One after the other, for each needs what the one before it left."""
    project = copy_finished(finished_mini(tmp_path_factory), tmp_path)
    shutil.rmtree(project.results / "runs" / "musique" / "kl-beta-0")
    for name in ("check.json", "metrics.json", "report.html"):
        (project.results / name).unlink()
    early = in_project(project, "report")
    assert early.returncode == 2
    assert early.stderr.endswith("finished study (rlvr-debug run --overlay mini.yaml)\n")

    found_again = in_project(project, "check-case", "--json", "--cores", "2")
    assert found_again.returncode == 0, found_again.stderr
    assert json.loads(found_again.stdout)["first"] == "tokens"
    told = in_project(project, "check-case")
    assert (told.returncode, told.stderr) == (0, "study mini: nothing to do\n")
    assert "  tokens                       DEVIATES  " in told.stdout

    before = json.loads(in_project(project, "status", "--json").stdout)
    assert {run["arm"]: run["state"] for run in before["runs"]} == {
        arm: "waiting" if arm == "kl-beta-0" else "done" for arm in ARMS
    }

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
    assert after["seconds_left"] == after["processor_seconds_left"] == 0
    assert in_project(project, "report").stdout.strip() == place

    again = in_project(project, "run", "--cores", "2")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert again.stderr == "study mini: nothing to do\n"

    # its files are there, but params.yaml asks for others
    changed = json.loads(json.dumps(MINI))
    changed["hypotheses"]["kl-penalty"]["arms"]["kl-beta-0"]["training"]["kl_beta"] = 0.01
    project.overlay(changed)
    stale = json.loads(in_project(project, "status", "--json").stdout)
    assert {run["arm"]: run["state"] for run in stale["runs"]} == {
        arm: "waiting" if arm == "kl-beta-0" else "done" for arm in ARMS
    }
    assert stale["processor_seconds_left"] > 0


@pytest.mark.heavy
@pytest.mark.parametrize("who", ["a terminal", "a supervisor", "a supervisor under nohup"])
def test_an_interrupted_study_leaves_nothing_at_work_and_no_lock(who: str, tmp_path: Path) -> None:
    project = copy(ROOT, tmp_path)
    project.overlay({**MINI, "training": {**MINI["training"], "steps": 10_000, "save_steps": 1}})
    process = started(project, "run", "--cores", "1", ignores=who.endswith("nohup"))
    try:
        wait_for(project.results, "runs/*/*/*/checkpoint/0*", process)
        # Ctrl-C reaches all of the group, a supervisor's signal only the one that it started
        if who == "a terminal":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        said, errors = process.communicate(timeout=120)
        assert (process.returncode, said) == (130, "")
        assert errors.splitlines()[-1] == "interrupted"
        group = [each for each in psutil.process_iter(["status"]) if _group(each) == process.pid]
        # one that has ended and whose parent has not looked yet is at no work
        assert [each for each in group if each.info["status"] != psutil.STATUS_ZOMBIE] == []
        assert not any((project.study / ".snakemake" / "locks").glob("*"))
    finally:
        end(process)
    found = json.loads(in_project(project, "status", "--json").stdout)
    assert (found["at_work"], found["seconds_left"]) == (False, None)
    # one core: whichever of them was first
    assert [run["state"] for run in found["runs"]].count("interrupted") == 1


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


@pytest.mark.heavy
def test_a_job_that_fails_is_status_1_and_its_error_stands_last(tmp_path: Path) -> None:
    project = copy(ROOT, tmp_path)
    project.overlay({**MINI, "training": {**MINI["training"], "prompts_per_step": 1000}})
    target = "results/runs/musique/case/0/metrics.jsonl"
    words = ("run", "--cores", "2", "--overlay", "mini.yaml", "--", target)
    done = call(*words, root=project.root, environment=project.environment)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "expected at least training.prompts_per_step (1000)" in done.stderr
    assert "Traceback" not in done.stderr


# --- how far a study is

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
    gate = tmp_path / "results" / "tables" / "phase_1.json"
    write_json(gate, {"phase": 1, "causes": []})
    assert look(gated, tmp_path).count() == {"waiting": 4}
    write_json(gate, {"phase": 1, "causes": ["kl-penalty"]})
    for arm in ("case", "control", "random-reward"):
        finish(tmp_path, arm)
    found = look(gated, tmp_path)
    assert found.count() == {"done": 3, "later": 1}
    assert found.processor_seconds_left == 0
