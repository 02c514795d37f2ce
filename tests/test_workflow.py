"""The workflow as a whole, in copies of the project: a study of two arms, one seed and two steps."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from lab.results import KEPT
from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.study.params import load_params
from rlvr_debug.study.running import events_to
from rlvr_debug.verdicts.decide import mechanism_of
from rlvr_debug.verdicts.looks import Look, look_file, read_look, write_look
from tests.shared import job_forks, once, ran

ROOT = Path(__file__).parents[1]
# bytecode is copied, but for what another process is writing: else each copy's first processes would compile it again
LEFT_OUT = shutil.ignore_patterns("*.egg-info", "*.pyc.*")
PARTS = ("params.yaml", "workflow", "scripts", "src", "models", "envs")
MINI: dict[str, Any] = {
    "study": "mini",
    # said, as this is some tests' params.yaml too
    "design": "fixed",
    "unnamed": False,
    "seeds": [0],
    "data": {name: {"rows": 60, "heldout": 8} for name in ("musique", "gsm8k")},
    "training": {"steps": 2, "prompts_per_step": 2, "group_size": 2},
    "hypotheses": {
        **dict.fromkeys(load_params(ROOT / "params.yaml").arms),
        "kl-penalty": {"arms": {"kl-beta-0": {"training": {"kl_beta": 0.0}}}},
        "lora-weight-sync": {"arms": {"forced-sync": None}},
    },
}
ARMS = ("case", "control", "random-reward", "kl-beta-0")


def jobs_in(events: Path) -> dict[str, int]:
    """Jobs by rule, of the events of a dry run."""
    found: dict[str, int] = {}
    for event in map(json.loads, events.read_text(encoding="utf-8").splitlines()):
        found = event["stats"] if event["event"] == "run_info" else found
    return {rule: count for rule, count in found.items() if rule != "total"}


class Project:
    """A copy of the project, that the commands run in. forked: the jobs of its study are forks of one process."""

    def __init__(self, root: Path, forked: bool = False) -> None:
        self.root = root
        self.study = root / "studies" / "mini"
        self.results = self.study / "results"
        # the copy's own library, and no settings of whoever runs the tests
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SNAKEMAKE")}
        self.environment = {
            **kept,
            "PYTHONPATH": os.pathsep.join(
                [str(root / "src"), *([job_forks().folder] if forked else [])]
            ),
            "OMP_NUM_THREADS": "1",
        }

    def overlay(self, values: Mapping[str, Any] = MINI) -> Path:
        path = self.root / "mini.yaml"
        path.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`rlvr-debug run`, in a process group of its own."""
        command = [sys.executable, "-m", "rlvr_debug.cli", "run", "--overlay", "mini.yaml"]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start("--cores", "2", *arguments)
        stdout, stderr = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.study.mkdir(parents=True, exist_ok=True)
        place = ("--snakefile", "../../workflow/Snakefile", "--config", "overlay=../../mini.yaml")
        return ran(
            [sys.executable, "-m", "snakemake", *arguments, *place],
            cwd=self.study,
            env=self.environment,
        )

    def to_do(self, *targets: str) -> dict[str, int]:
        """Jobs by rule that a dry run has. targets: of all there are without any."""
        events = self.root.with_name(f"{self.root.name}-events")
        done = self.run("--", *targets, "--dry-run", *events_to(str(events)))
        assert done.returncode == 0, done.stderr
        jobs = jobs_in(events)
        assert bool(jobs) != ("Nothing to be done" in done.stdout + done.stderr)
        return jobs

    def tables(self) -> dict[str, bytes]:
        paths = [self.results / "metrics.json", *sorted((self.results / "tables").glob("*"))]
        return {path.name: path.read_bytes() for path in paths}

    def in_git(self) -> dict[str, bytes]:
        """What git keeps of the study: the same each time on one machine."""
        found = [
            path for name in KEPT for path in (self.results / name, *self.results.glob(f"{name}/*"))
        ]
        return {
            str(path.relative_to(self.root)): path.read_bytes() for path in found if path.is_file()
        }


def copy(source: Path, target: Path, forked: bool = False) -> Project:
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, ignore=LEFT_OUT)
        else:
            shutil.copy2(source / part, target / part)
    project = Project(target, forked)
    project.overlay()
    return project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return copy(ROOT, tmp_path)


def finished_mini(factory: pytest.TempPathFactory) -> Project:
    """A project whose mini study is finished, one for all tests; not to be changed."""

    def make(root: Path) -> None:
        done = copy(ROOT, root, forked=True).run()
        assert done.returncode == 0, done.stderr

    return Project(once(factory, "mini", make))


def copy_finished(original: Project, target: Path) -> Project:
    """Results and all."""
    project = copy(original.root, target, forked=True)
    shutil.copytree(original.study, project.study)
    return project


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return finished_mini(tmp_path_factory)


@pytest.fixture
def finished(original: Project, tmp_path: Path) -> Project:
    return copy_finished(original, tmp_path)


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that begins with `error: `."""
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, done.stderr
    return lines[0]


# --- a study from end to end


@pytest.mark.heavy
def test_a_study_ends_with_everything_that_people_read(original: Project) -> None:
    results = original.results
    assert set(original.tables()) >= {"metrics.json", "runs.csv", "arms.csv", "verdicts.csv"}
    runs = pd.read_csv(results / "tables" / "runs.csv")
    assert list(zip(runs["arm"], runs["seed"], runs["steps"], strict=True)) == [
        (arm, 0, 2) for arm in ARMS
    ]
    assert set(json.loads((results / "metrics.json").read_text())["arms"]) == set(ARMS)
    verdicts = pd.read_csv(results / "tables" / "verdicts.csv").set_index("hypothesis")
    assert list(verdicts.index) == ["kl-penalty", "lora-weight-sync"]
    assert verdicts.loc["lora-weight-sync", "status"] == "pending"
    for chart in ("learning", "effects"):
        assert "<svg" in (results / "charts" / f"{chart}.svg").read_text(encoding="utf-8")
    report = (results / "report.html").read_text(encoding="utf-8")
    assert report.endswith("</html>\n")
    for part in ("answer", "kl-penalty", "lora-weight-sync", "viewer"):
        assert f'id="{part}"' in report
    assert not list(original.study.rglob("*.tmp"))


@pytest.mark.heavy
def test_the_overlay_s_study_leaves_the_default_one_alone(original: Project) -> None:
    assert sorted(path.name for path in original.root.iterdir()) == sorted(
        [*PARTS, "mini.yaml", "studies"]
    )


@pytest.mark.heavy
def test_every_cause_is_judged_by_what_the_check_of_a_study_sees(original: Project) -> None:
    answer = json.loads((original.results / "check.json").read_text(encoding="utf-8"))
    for hypothesis in map(load_hypothesis, hypothesis_names()):
        present = mechanism_of(hypothesis.slug, answer).present
        assert (present is None) == (hypothesis.kind == "localiser"), hypothesis.slug


# --- what runs again


@pytest.mark.heavy
def test_a_finished_study_has_nothing_to_do_even_in_another_place(finished: Project) -> None:
    assert finished.to_do() == {}


def turned(value: Any) -> Any:
    """With all keys in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return value


@pytest.mark.heavy
def test_comments_and_the_order_of_keys_rerun_nothing(finished: Project) -> None:
    params = finished.root / "params.yaml"
    before = yaml.safe_load(params.read_text(encoding="utf-8"))
    params.write_text("# new\n" + yaml.safe_dump(turned(before), sort_keys=False), encoding="utf-8")
    finished.overlay(turned(MINI))
    assert list(yaml.safe_load(params.read_text(encoding="utf-8"))) == list(before)[::-1]
    assert finished.to_do() == {}


REPORTING = ("write_tables", "draw_charts", "write_report", "all")


@pytest.mark.heavy
def test_a_changed_arm_reruns_that_arm_and_what_follows(finished: Project) -> None:
    changed = deepcopy(MINI)
    changed["hypotheses"]["kl-penalty"]["arms"]["kl-beta-0"]["training"]["kl_beta"] = 0.01
    finished.overlay(changed)
    jobs = finished.to_do()
    assert {rule: jobs.pop(rule) for rule in ("train", "evaluate_run")} == {
        "train": 1,
        "evaluate_run": 1,
    }
    assert set(jobs) <= set(REPORTING)
    assert {"write_tables", "draw_charts", "write_report"} <= set(jobs)


@pytest.mark.heavy
def test_another_seed_trains_only_that_seed(finished: Project) -> None:
    finished.overlay({**MINI, "seeds": [0, 1]})
    jobs = finished.to_do()
    assert {rule: jobs[rule] for rule in ("train", "evaluate_run")} == {
        "train": len(ARMS),
        "evaluate_run": len(ARMS),
    }
    assert set(jobs) <= {"train", "evaluate_run", *REPORTING}


@pytest.mark.heavy
def test_another_threshold_trains_nothing_and_one_run_is_enough(finished: Project) -> None:
    finished.overlay({**MINI, "verdicts": {"minimum_effect": 0.2}})
    assert {"write_tables"} <= set(finished.to_do()) <= set(REPORTING)
    assert finished.run().returncode == 0
    assert finished.to_do() == {}
    told = json.loads((finished.results / "study.json").read_text(encoding="utf-8"))
    assert told["params"]["verdicts"]["minimum_effect"] == 0.2


@pytest.mark.heavy
def test_other_evaluation_settings_train_nothing_and_are_evaluated_anew(finished: Project) -> None:
    def heldout() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in finished.results.rglob("heldout.json")}

    before = heldout()
    finished.overlay({**MINI, "evaluation": {"seed": 1}})
    jobs = finished.to_do()
    assert "train" not in jobs
    assert jobs["evaluate_run"] == len(ARMS) == len(before)
    done = finished.run()
    assert done.returncode == 0, done.stderr
    assert heldout().keys() == before.keys()
    assert heldout() != before
    # nothing that a training left stays, and the check is told of once, though it is not made again
    assert not list(finished.results.rglob("evaluated.json"))
    told = [line for line in done.stderr.splitlines() if "a healthy run" in line]
    assert len(told) == 1
    assert "hidden-context" in told[0]


def gated(project: Project) -> None:
    """Its study as one with a gate, trained but not judged yet."""
    project.overlay({**MINI, "phases": "gated"})
    shutil.rmtree(project.results / "tables")
    for name in ("metrics.json", "report.html"):
        (project.results / name).unlink()


@pytest.mark.heavy
def test_a_gate_that_finds_no_cause_opens_the_next_phase(finished: Project) -> None:
    gated(finished)
    done = finished.run()
    assert done.returncode == 0, done.stderr
    looks = [read_look(look_file(finished.results, number)) for number in (1, 2)]
    assert [(look.phase, look.more, look.causes) for look in looks] == [
        (3, True, ()),
        (3, False, ()),
    ]
    runs = pd.read_csv(finished.results / "tables" / "runs.csv")
    assert set(runs["arm"]) == set(ARMS)
    assert finished.to_do() == {}


@pytest.mark.heavy
def test_a_gate_that_found_a_cause_leaves_the_next_phase_out(finished: Project) -> None:
    gated(finished)
    assert finished.run().returncode == 0
    gate = look_file(finished.results, 1)
    first = Look(1, 1, read_look(gate).seeds, more=False, causes=("hidden-context",))
    write_look(first, gate)
    # as if the job had just written it
    assert finished.run("--", "--touch").returncode == 0
    assert finished.run("--", "--forcerun", "write_tables").returncode == 0
    assert set(pd.read_csv(finished.results / "tables" / "runs.csv")["arm"]) == {*ARMS} - {
        "kl-beta-0"
    }
    assert finished.run("--all", "--", "--forcerun", "write_tables").returncode == 0
    assert set(pd.read_csv(finished.results / "tables" / "runs.csv")["arm"]) == {*ARMS}


@pytest.mark.heavy
def test_changed_code_reruns_what_it_computes_and_a_comment_nothing(finished: Project) -> None:
    stages = finished.root / "src/rlvr_debug/grpo/stages.py"
    with stages.open("a") as file:
        file.write("# another line\n")
    assert finished.to_do() == {}
    with stages.open("a") as file:
        file.write("ANOTHER = 1\n")
    jobs = finished.to_do()
    assert (jobs["train"], jobs["check_case"]) == (len(ARMS), 1)
    assert not {"prepare_data", "evaluate_baseline"} & set(jobs)


@pytest.mark.heavy
def test_what_a_failed_job_removed_is_asked_for_again(finished: Project) -> None:
    """Though tables from before stand, and nothing that is an input changed: the machine failed."""
    failed: list[str] = []
    # the last of them is needed by the others
    for rule in ("evaluate_baseline", "train", "check_case", "prepare_data"):
        script = finished.root / "scripts" / f"{rule.replace('_baseline', '')}.py"
        right, times = script.read_bytes(), script.stat()
        script.write_text("raise SystemExit('broken')\n", encoding="utf-8")
        assert finished.run("--", "--forcerun", rule, "--until", rule).returncode != 0
        script.write_bytes(right)
        os.utime(script, ns=(times.st_atime_ns, times.st_mtime_ns))
        failed.append(rule)
        if rule in ("check_case", "prepare_data"):
            assert {*failed} <= {*finished.to_do()}


# --- killed, and run at the same time


def wait_for(path: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not any(path.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def running(project: Project) -> Iterator[subprocess.Popen[str]]:
    """A study that has begun to train. Its processes are ended after the test."""
    process = project.start("--cores", "1")
    try:
        wait_for(project.results, "runs/*/*/*/model.safetensors", process)
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill the process and all that it started, and wait until they are gone."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.communicate()
    while True:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)


@pytest.mark.heavy
def test_a_killed_study_is_taken_up_again_and_ends_with_the_same_bytes(
    original: Project, project: Project, running: subprocess.Popen[str]
) -> None:
    second = project.run()
    assert error_line(second).startswith(f"error: {project.study}: another run of this study")
    assert len(second.stderr.splitlines()) == 1

    running.kill()  # but not Snakemake, which goes on
    running.wait()
    third = project.run()
    assert re.fullmatch(
        rf"error: {project.study}: Snakemake \(process \d+\) is at work there; wait for it",
        error_line(third),
    )

    end(running)
    locks = project.study / ".snakemake" / "locks"
    assert any(locks.glob("*"))
    assert "locked" in project.snakemake("results/metrics.json").stderr

    rows = project.study / "data" / "splits" / "musique" / "train.jsonl"
    prepared = rows.stat().st_mtime_ns
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert project.in_git() == original.in_git()
    assert rows.stat().st_mtime_ns == prepared  # what was done stays done
    assert not any(locks.glob("*"))


def test_only_one_run_of_a_study_at_a_time(project: Project) -> None:
    project.study.mkdir(parents=True)
    with (project.study / ".run.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = project.run("--", "-n")
    assert "another run of this study is under way" in error_line(done)
    assert len(done.stderr.splitlines()) == 1


# --- bad input


@pytest.fixture
def unknown_key(project: Project) -> Project:
    project.overlay({**MINI, "training": {"learning_rat": 0.1}})
    return project


UNKNOWN = "mini.yaml: unknown key 'training.learning_rat': did you mean 'learning_rate'?"


def test_an_unknown_key_ends_a_study_with_one_line(unknown_key: Project) -> None:
    done = unknown_key.run()
    assert error_line(done) == f"error: {UNKNOWN}"
    assert done.stderr.count("\n") == 1
    assert not unknown_key.study.exists()


def test_an_unknown_key_ends_snakemake_itself_with_one_line(unknown_key: Project) -> None:
    done = unknown_key.snakemake("-n")
    assert error_line(done) == f"error: ../../{UNKNOWN}"


@pytest.fixture
def bad_row(project: Project) -> Project:
    row = json.dumps({"question": "1+1?", "answer": "#### 2"})
    (project.root / "rows.jsonl").write_text(f"{row}\n{row[:-5]}\n")
    source = {"source": "jsonl", "path": "rows.jsonl", "heldout": 1}
    rows = {"gsm8k": source, "musique": MINI["data"]["musique"]}
    project.overlay({**MINI, "environment": "gsm8k", "data": rows})
    return project


BAD_ROW = "rows.jsonl:2: expected one JSON object, found a line that is not JSON"


def test_a_bad_row_ends_a_study_with_one_line_before_it_starts(bad_row: Project) -> None:
    done = bad_row.run()
    assert error_line(done).startswith(f"error: {BAD_ROW}")
    assert done.stderr.count("\n") == 1
    assert not bad_row.study.exists()


def test_a_bad_row_ends_snakemake_itself_and_leaves_nothing_half_written(bad_row: Project) -> None:
    done = bad_row.snakemake("--cores", "2")
    assert error_line(done).startswith(f"error: ../../{BAD_ROW}")
    left = sorted(path.name for path in bad_row.results.rglob("*") if path.is_file())
    assert left == ["jobs.json", "study.json"]
