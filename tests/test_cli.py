"""The command line, as a process of its own: what it prints, and its exit status."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TextIO

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import app, main
from rlvr_debug.cli.running import _verdicts, _why_more
from rlvr_debug.cli.shared import folded
from rlvr_debug.files import write_text
from tests.in_process import called
from tests.shared import ran
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
    *("diagnose", "check", "plan", "run", "status", "report"),
    *("check-case", "check-program", "init", "new-hypothesis"),
    *("track", "prune", "unlock", "clean"),
)
LOG = ROOT / "tests" / "logs" / "dead-groups"
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rlvr_debug.cli", *words]


def call(
    *words: str, root: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "100", **(environment or {})}
    return ran(command(*words), cwd=root, env=variables)


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, value)] = project["scripts"].items()
    assert (name, EntryPoint(name, value, "console_scripts").load()) == ("rlvr-debug", main)


def test_help_lists_what_a_user_needs_before_the_rest() -> None:
    said = CliRunner().invoke(app, ["--help"]).stdout.partition("Commands:")[2]
    assert tuple(re.findall(r"^  ([a-z-]+)  ", said, re.MULTILINE)) == COMMANDS


def test_a_hypothesis_whose_arms_a_study_did_not_run_is_said_to_be_not_tested(
    tmp_path: Path,
) -> None:
    rows = "hypothesis,status,confidence,effect\nkl-penalty,pending,low,\n"
    write_text(tmp_path / "tables" / "verdicts.csv", rows)
    assert [*_verdicts(tmp_path).columns[1].cells] == ["not tested"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_are_commands_with_options_that_there_are(name: str) -> None:
    said = CliRunner().invoke(app, [name, "--help"]).stdout
    examples = [line.split() for line in said.partition("Examples:")[2].splitlines() if line]
    assert examples
    assert all(words[:2] == ["rlvr-debug", name] for words in examples)
    for option in {word for words in examples for word in words if word.startswith("--")}:
        assert f" {option} " in said.partition("Examples:")[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--overlay", "none.yaml"], "error: none.yaml: No such file or directory, expected parameters in YAML"),
        (["plan", "--cores", "none"], "error: --cores: found 'none', expected all or a number of at least 1"),
        (["run", "studies/smoke.yaml"], "error: run: unknown argument 'studies/smoke.yaml'; name a study by --overlay, "),
        (["plan", "mine.yaml"], "error: plan: Got unexpected extra argument(s) (mine.yaml); name a study by --overlay"),
        (["run", "--cores", "none"], "error: --cores: found 'none', expected all or a number of at least 1"),
        (["check-case", "--overlay", "none.yaml"], "error: none.yaml: No such file or directory"),
        (["status", "--watch", "--json"], "error: --watch: found with --json, expected one of the two"),
        (["run", "--profile", "none"], "error: profile 'none': expected default, gpu, slurm, "),
        (["status", "--overlay", "params.yaml"], "error: params.yaml: key 'study' is 'default', the name in "),
        (["new-hypothesis", "Learning Rate"], "error: slug is 'Learning Rate', expected words of a to z"),
        (["new-hypothesis", "kl-penalty"], "error: "),
        (["new-hypothesis", "x", "--kind", "effect"], "error: --kind: found 'effect', expected cause or localiser"),
        (["diagnose", "none"], "error: none: "),
        (["diagnose", "tests/logs"], "error: tests/logs: found 13 runs, expected the path of one, such as tests/logs/c"),
        (["diagnose", str(LOG), "--run", "a"], f"error: --run a: {LOG}/trainer_state.json is no file of several runs, expected a CSV export"),
        (["check", "--record", "tests"], "error: tests/record.json: no such file, expected a folder of a record"),
        (["init", "x"], f"error: {ROOT}: is a checkout, init needs an installed wheel: type cd {ROOT}"),
        (["diagnose", str(LOG), "--trainer", "verl"], "error: --trainer (the study's, not the log's): found 'verl', expected command or trl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(words: list[str], said: str) -> None:
    done = called(main, "rlvr-debug", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("buffered", ["", "1"])
def test_an_answer_that_cannot_be_printed_is_one_line_that_says_where(buffered: str) -> None:
    """It named "a file", and Python said the rest at its end."""
    words = [sys.executable, "-m", "rlvr_debug", "diagnose", str(LOG)]
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    said = "error: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("words", ["plan", "report", "prune --dry-run"])
def test_a_command_outside_of_any_checkout_does_nothing_to_another(
    tmp_path: Path, words: str
) -> None:
    done = called(main, "rlvr-debug", *words.split(), root=tmp_path)
    said = f"error: {tmp_path}: is in no checkout with studies; first type: cd {ROOT}\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rum", "No such command 'rum'. Did you mean 'run'?"),
        (str(LOG), f"No such command '{LOG}'; `rlvr-debug diagnose {LOG}` reads a log"),
        ("run --overlya", "run: No such option: --overlya"),
        ("diagnose", "diagnose: Missing argument 'path'"),
        ("check --steps 0", "check: Invalid value for '--steps': "),
        ("check --stesp 4", "check: no such option --stesp: did you mean '--steps'?"),
        ("check --lr 4", "check: no such option --lr: the script's own options stand after it"),
        ("check torchrun a.py", "torchrun: found a launcher, expected a script; "),
    ],
)
def test_what_a_command_cannot_parse_is_one_line(words: str, said: str) -> None:
    done = ran(command(*words.split()), cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.count("\n") == 1


def test_an_answer_that_nobody_reads_on_is_no_job_that_failed() -> None:
    """Typer ended with 1, which cli.md has for a job of a study."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("diagnose", str(LOG)), stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_whoever_reads_only_the_beginning_is_not_told_of_a_broken_pipe() -> None:
    words = " ".join(command("diagnose", str(LOG), "--json"))
    done = ran(["bash", "-c", f"{words} | head -1"], cwd=ROOT, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


# --- a study that has not begun, and what files of one are said to be


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copy(ROOT, tmp_path_factory.mktemp("project"))


def in_project(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return call(
        *words, "--overlay", "mini.yaml", root=project.root, environment=project.environment
    )


def test_plan_is_of_the_checkout_it_is_started_in_and_says_the_same_in_words_and_in_json(
    project: Project,
) -> None:
    """It read the overlay there, and all else where the package was installed from: studies were written there too."""
    text = in_project(project, "plan", "--cores", "2").stdout
    elsewhere = {**project.environment, "PYTHONPATH": str(ROOT / "src")}
    inner = project.root / "workflow"
    words = ("plan", "--cores", "2", "--overlay", "../mini.yaml", "--json")
    found = json.loads(call(*words, root=inner, environment=elsewhere).stdout)
    unlocked = call("unlock", "--overlay", "../mini.yaml", root=inner, environment=elsewhere)
    place, said = unlocked.stdout.strip().split(": ")
    assert (inner / place).resolve() == project.study
    assert said == "no such study yet"
    assert (found["study"], found["trainings_left"]) == ("mini", len(ARMS))
    assert found["jobs"]["train"] == found["whole"]["trainings"] == len(ARMS)
    [row] = [line for line in text.splitlines() if line.startswith("minutes on 2 cores")]
    assert row.split()[-2:] == [f"{found[part]['seconds'] / 60:.1f}" for part in ("whole", "left")]
    # Snakemake, which is asked, makes a folder to look
    assert not project.study.exists()


def test_jobs_that_are_added_on_the_way_are_said_to_be_because_of_results() -> None:
    """The total grew, "8 of 39" after "2 of 16", and nothing said why."""
    said: list[str | tuple[int, int]] = []
    steps = _why_more("study mini", said.append, lambda done, of: said.append((done, of)))
    for counts in ((0, 16), (2, 16), (8, 39), (39, 39)):
        steps(*counts)
    why = "study mini: the results so far call for 23 more jobs"
    assert said == [(0, 16), (2, 16), why, (8, 39), (39, 39)]


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


@given(st.text(st.sampled_from("ab-/ \n"), max_size=200), st.integers(20, 100))
def test_an_answer_is_folded_between_words_and_says_the_same(text: str, width: int) -> None:
    lines = folded(text, width).split("\n")
    assert "".join(folded(text, width).split()) == "".join(text.split())
    assert all(len(line) <= width or len(line.split()) < 2 for line in lines)
    assert folded(text, len(text)) == text


@pytest.mark.heavy
def test_colours_are_for_terminals_and_for_who_wants_them(failed: Project) -> None:
    words = ("status", "--overlay", "mini.yaml")
    said = on_a_terminal(failed, *words)
    assert COLOUR.search(said)
    assert not COLOUR.search(on_a_terminal(failed, *words, NO_COLOR="1"))
    piped = in_project(failed, "status")
    assert "\x1b" not in piped.stdout + piped.stderr
    for text in (piped.stdout, re.sub(r"\x1b\[[0-9;]*m", "", said)):
        assert "1 failed, 3 waiting" in text


def test_a_report_that_is_not_there_yet_is_one_line_with_the_command_for_it(tmp_path: Path) -> None:
    overlay = tmp_path / "never.yaml"
    overlay.write_text("study: never-run\n")
    done = called(main, "rlvr-debug", "report", "--overlay", str(overlay))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: studies/never-run/results/report.html: study never-run has no report yet; "
        f"finish it first (rlvr-debug run --overlay {overlay})\n"
    )


@contextmanager
def held(project: Project) -> Iterator[TextIO]:
    """That study, as if a run of it were at work."""
    with (project.study / ".run.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


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


@pytest.mark.heavy
def test_watching_into_a_pipe_is_a_line_for_each_change(failed: Project) -> None:
    with held(failed) as lock:
        process = started(failed, "status", "--watch")
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            write_text(failed.study / "logs/train/musique/control/0.log", "")
            second = process.stdout.readline()
            fcntl.flock(lock, fcntl.LOCK_UN)
            *_, last = process.communicate(timeout=120)[0].splitlines()
        finally:
            end(process)
    assert first.startswith("study mini: running: 1 failed, 3 waiting; about ")
    assert second.startswith("study mini: running, 1 at a time: 1 training, 1 failed, 2 waiting; ")
    assert last.startswith("study mini: not running: 1 failed, 1 interrupted, 2 waiting; about ")
    assert process.returncode == 0


@pytest.mark.heavy
def test_ctrl_c_while_watching_is_status_130(failed: Project) -> None:
    with held(failed):
        process = started(failed, "status", "--watch")
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
    assert early.stderr.endswith("finish it first (rlvr-debug run --overlay mini.yaml)\n")

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
    nothing, answer = again.stderr.splitlines()
    assert nothing == "study mini: nothing to do"
    assert answer.startswith("the case differs from a healthy run in: tokens (sequence-mismatch)")

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
