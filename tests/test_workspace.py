import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import OutputSettingsLoggerInterface

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text
from rlvr_debug.study.folder import PROFILES, hold, jobs_to_do, last_run, profile, runs_to_do
from rlvr_debug.study.params import load_params
from rlvr_debug.study.running import tidy, unlock, unnamed
from snakemake_logger_plugin_rlvr_debug import LogHandler, LogHandlerSettings

SMOKE = ROOT / "studies" / "smoke.yaml"
What = Literal["prune", "unlock", "clean"]
NEEDED = [
    "results/runs/musique/case/0/model.safetensors",
    "results/runs/musique/control/1/metrics.jsonl",
    "logs/train/musique/case/0.log",
    "logs/evaluate_run/musique/control/1.log",
    "results/report.html",
    # not of runs: no business of prune
    "results/tables/verdicts.csv",
    "results/releases/verifiers-0.1.3/note.json",
    "data/splits/calculator/train.jsonl",
    "data/rows-of-mine.jsonl",
    "logs/write_tables.log",
]
UNNAMED = {
    "results/runs/musique/case/9": ["metrics.jsonl", "checkpoint/state.json"],
    "results/runs/musique/gone": ["0/metrics.jsonl", "1/metrics.jsonl"],
    # told the same as the case, which is trained for both
    "results/runs/musique/forced-sync": ["0/metrics.jsonl"],
    "results/runs/calculator": ["case/0/metrics.jsonl"],
    "logs/train/musique/case/9.log": [""],
    "logs/evaluate_run/musique/gone": ["0.log"],
}


class Project:
    """The folder of a study that is the default one, or an overlay's, in a project of nothing else."""

    def __init__(self, root: Path, overlay: Path | None) -> None:
        self.root, self.overlay = root, overlay
        self.params = load_params(ROOT / "params.yaml", overlay)
        self.folder = root / "studies" / "smoke" if overlay else root
        self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, *names: str) -> None:
        for name in names:
            write_text(self.folder / name, "x")

    def files(self) -> set[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file() or path.is_symlink())
        names = {str(path.relative_to(self.folder)) for path in found}
        return {name for name in names if not name.startswith(".git/")} - {".run.lock"}

    def tidy(self, what: What, **more: Any) -> list[str]:
        return list(tidy(what, self.params, self.overlay, root=self.root, **more))

    def track(self) -> None:
        """Commit all that is there."""
        author = ("-c", "user.name=someone", "-c", "user.email=some@one")
        for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "all"]):
            subprocess.run(["git", *command], cwd=self.root, check=True)


@pytest.fixture(params=[None, SMOKE], ids=["default", "overlay"])
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    return Project(tmp_path, request.param)


@pytest.fixture
def pruned(project: Project) -> Project:
    """With all of NEEDED and of UNNAMED."""
    project.add(*NEEDED, *(f"{p}/{f}" if f else p for p, fs in UNNAMED.items() for f in fs))
    return project


# --- prune


def test_prune_removes_what_params_no_longer_name_and_nothing_else(pruned: Project) -> None:
    said = pruned.tidy("prune")
    assert pruned.files() == set(NEEDED)
    place = f"{pruned.folder.relative_to(pruned.root)}/".removeprefix("./")
    assert sorted(said) == sorted(f"removed {place}{name}" for name in UNNAMED)
    assert pruned.tidy("prune") == [
        f"{pruned.folder}: nothing to remove: params.yaml names every file"
    ]


def test_a_dry_prune_says_the_same_and_removes_nothing(pruned: Project) -> None:
    before = pruned.files()
    said = pruned.tidy("prune", dry_run=True)
    assert pruned.files() == before
    assert [line.replace("would remove", "removed") for line in said] == pruned.tidy("prune")


def test_every_run_that_a_study_trains_is_kept(project: Project) -> None:
    from rlvr_debug.study.arms import runs

    for run in runs(project.params):
        place = f"{run.environment}/{run.trained_as}/{run.seed}"
        project.add(f"results/runs/{place}/metrics.jsonl", f"logs/train/{place}.log")
    assert unnamed(project.params, project.folder) == []


def test_prune_takes_a_link_away_and_not_what_it_leads_to(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_text(elsewhere / "precious", "x")
    project.add(*NEEDED)
    (project.folder / "results/runs/musique/gone").symlink_to(elsewhere)
    (project.folder / "results/runs/musique/case/9").symlink_to(elsewhere / "precious")
    assert len(project.tidy("prune")) == 2
    assert project.files() == set(NEEDED)
    assert (elsewhere / "precious").is_file()


def test_prune_of_one_study_leaves_the_other_alone(tmp_path: Path) -> None:
    default, smoke = Project(tmp_path, None), Project(tmp_path, SMOKE)
    # the default study has such an arm, the other not
    both = "results/runs/musique/kl-beta-0/0/metrics.jsonl"
    default.add(both)
    smoke.add(both)
    default.tidy("prune")
    assert (default.folder / both).is_file()
    assert smoke.files() == {both}
    smoke.tidy("prune")
    assert (default.folder / both).is_file()
    assert smoke.files() == set()


# --- clean


def test_clean_leaves_what_git_tracks_and_the_environment(project: Project) -> None:
    project.add("results/releases/a.json", "results/metrics.json", "params.yaml")
    write_text(project.folder / ".gitignore", "logs/\n/results/runs\n.venv/\n.snakemake/\n")
    project.track()
    ignored = ["results/runs/musique/case/0/a", "logs/train.log", ".snakemake/metadata/a"]
    project.add(*ignored, ".venv/bin/python", "notes.txt")
    project.add("results/metrics.json")
    project.tidy("clean")
    tracked = {"results/releases/a.json", "results/metrics.json", "params.yaml", ".gitignore"}
    assert project.files() == tracked | {".venv/bin/python", "notes.txt"}


def test_clean_takes_the_splits_and_leaves_a_user_s_own_rows_beside_them(project: Project) -> None:
    project.add("params.yaml")
    write_text(project.folder / "data" / ".gitignore", "/splits\n")
    project.track()
    mine = ["data/mine.jsonl", "data/mine/train.jsonl", "data/real/mine.jsonl"]
    project.add("data/splits/musique/train.jsonl", *mine)
    project.tidy("clean")
    assert project.files() == {"params.yaml", "data/.gitignore", *mine}


def test_clean_of_the_default_study_leaves_the_others(tmp_path: Path) -> None:
    default, smoke = Project(tmp_path, None), Project(tmp_path, SMOKE)
    default.add("params.yaml")
    default.track()
    for project in (default, smoke):
        project.add("results/metrics.json")
    default.tidy("clean")
    assert smoke.files() == {"results/metrics.json"}
    smoke.tidy("clean")
    assert default.files() - {"studies/smoke/.run.lock"} == {"params.yaml"}


def test_clean_without_git_removes_nothing_and_is_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.root.parent))
    project.add("results/metrics.json")
    with pytest.raises(InputError, match=r"^git clean: fatal: not a git repository"):
        project.tidy("clean")
    assert project.files() == {"results/metrics.json"}


# --- a study at work


@pytest.fixture
def at_work(project: Project) -> Iterator[int]:
    """The id of a process that looks like a Snakemake started by hand in the study."""
    command = [sys.executable, "-c", "import time; time.sleep(600)", "snakemake"]
    process = subprocess.Popen(command, cwd=project.folder)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


EACH = pytest.mark.parametrize("what", ["prune", "unlock", "clean"])


@EACH
def test_nothing_is_tidied_while_a_run_holds_the_study(pruned: Project, what: What) -> None:
    pruned.track()
    pruned.add(".snakemake/locks/0.input.lock", "results/new")
    before = pruned.files()
    with (
        hold(pruned.folder),
        pytest.raises(InputError, match=r": another run of this study is under way; wait for it$"),
    ):
        pruned.tidy(what)
    assert pruned.files() == before


@EACH
def test_nothing_is_tidied_while_snakemake_is_at_work(
    pruned: Project, what: What, at_work: int
) -> None:
    pruned.track()
    pruned.add(".snakemake/locks/0.input.lock", "results/new")
    before = pruned.files()
    with pytest.raises(InputError, match=rf": Snakemake \(process {at_work}\) is at work there"):
        pruned.tidy(what)
    assert pruned.files() == before


@pytest.mark.parametrize("project", [SMOKE], indirect=True, ids=["overlay"])
def test_unlock_removes_a_lock_that_was_left(project: Project) -> None:
    lock = ".snakemake/locks/0.input.lock"
    assert project.tidy("unlock") == [f"{project.folder}: was not locked"]
    project.add(lock, "results/metrics.json")
    assert project.tidy("unlock") == [f"{project.folder}: unlocked"]
    assert lock not in project.files()
    assert "results/metrics.json" in project.files()


@EACH
def test_a_study_that_never_ran_has_nothing_to_tidy(tmp_path: Path, what: What) -> None:
    params = load_params(ROOT / "params.yaml", SMOKE)
    assert list(tidy(what, params, SMOKE, root=tmp_path)) == [
        f"{tmp_path / 'studies' / 'smoke'}: no such study yet"
    ]
    assert list(tmp_path.iterdir()) == []


# --- profiles


def test_a_profile_is_one_of_the_workflow_s_or_a_user_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "mine" / "config.yaml", "cores: 1")
    assert profile("slurm") == str(PROFILES / "slurm")
    assert profile("mine") == str(tmp_path / "mine")
    assert profile("mine/config.yaml") == str(tmp_path / "mine" / "config.yaml")
    assert profile("default") == "none"  # beside the one that Snakemake finds
    with pytest.raises(
        InputError,
        match=r"^profile 'src': expected default, gpu, slurm, slurm-four-gpus, or the path of a profile of your own$",
    ):
        profile("src")


# --- who is at work, and what is to do


def test_who_is_refused_does_not_change_since_when_a_study_is_at_work(tmp_path: Path) -> None:
    assert not last_run(tmp_path)[0]
    with hold(tmp_path):
        os.utime(tmp_path / ".run.lock", (1000, 1000))
        assert last_run(tmp_path) == (True, 1000)
        with pytest.raises(InputError, match="another run of this study is under way"):
            hold(tmp_path)
        assert last_run(tmp_path) == (True, 1000)
    assert not last_run(tmp_path)[0]
    with hold(tmp_path):
        at_work, begun = last_run(tmp_path)
        assert at_work
        assert begun == pytest.approx(time.time(), abs=60)


def test_a_lock_that_snakemake_does_not_give_up_is_one_line_with_its_reason(tmp_path: Path) -> None:
    lock = tmp_path / ".snakemake" / "locks" / "0.input.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    refuses = [sys.executable, "-c", "import sys; sys.exit('no such rule')"]
    with pytest.raises(
        InputError, match=r"cannot be unlocked by snakemake --unlock: no such rule$"
    ):
        unlock(tmp_path, refuses)
    assert lock.exists()


def test_who_only_looks_is_waited_for(tmp_path: Path) -> None:
    hold(tmp_path).close()
    with (tmp_path / ".run.lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.02, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with hold(tmp_path):
            assert last_run(tmp_path)[0]


def test_a_snakemake_that_was_started_by_hand_is_at_work(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "print('ready', flush=True); input()", "-m", "snakemake"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        at_work, begun = last_run(tmp_path)
        assert at_work
        assert begun == pytest.approx(time.time(), abs=60)
        assert not last_run(tmp_path.parent)[0]
        process.communicate("\n")
    assert not last_run(tmp_path)[0]


def writes_events(*events: dict[str, Any]) -> list[str]:
    """A command that does in Snakemake's place what the plug-in does: its last word names the file."""
    lines = "".join(json.dumps(event) + "\n" for event in events)
    return [sys.executable, "-c", f"import sys; open(sys.argv[-1], 'w').write({lines!r})"]


def test_jobs_of_runs_are_known_by_their_run_and_those_of_other_rules_are_left_out(
    tmp_path: Path,
) -> None:
    def job(rule: str, **wildcards: str) -> dict[str, Any]:
        return {"event": "job_info", "rule_name": rule, "wildcards": wildcards}

    command = writes_events(
        {"event": "run_info", "stats": {"train": 1, "evaluate_run": 1, "total": 4}},
        job("prepare_data", environment="gsm8k"),
        job("train", environment="musique", arm="kl-beta-0", seed="2"),
        job("evaluate_run", environment="gsm8k", arm="case", seed="0"),
        job("write_tables"),
    )
    assert runs_to_do(tmp_path, command) == {
        ("train", "musique/kl-beta-0/2"),
        ("evaluate_run", "gsm8k/case/0"),
    }
    assert jobs_to_do(tmp_path, command) == {"train": 1, "evaluate_run": 1}


def test_nothing_to_do_is_no_jobs(tmp_path: Path) -> None:
    assert jobs_to_do(tmp_path, writes_events()) == {}
    assert runs_to_do(tmp_path, writes_events()) == set()


# --- the plug-in


def record(level: int = logging.INFO, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", level, "", 0, "said", None, None)
    made.__dict__.update(more)
    return made


def handler(events: str) -> LogHandler:
    return LogHandler(OutputSettingsLoggerInterface(), LogHandlerSettings(events))


def test_events_are_written_as_they_happen_and_what_is_only_said_is_not(tmp_path: Path) -> None:
    events = tmp_path / "events"
    plugin = handler(str(events))
    plugin.handle(record())
    plugin.handle(record(event=LogEvent.PROGRESS, done=3, total=18))
    plugin.handle(record(logging.ERROR, event=LogEvent.ERROR, exception="ValueError"))
    assert list(map(json.loads, events.read_text().splitlines())) == [
        {"event": "progress", "done": 3, "total": 18}
    ]
    plugin.close()
    plugin.close()


def test_a_run_goes_on_when_whoever_read_its_events_is_gone() -> None:
    ours, theirs = os.pipe()
    plugin = handler(f"/dev/fd/{theirs}")
    os.close(ours)
    with pytest.raises(BrokenPipeError):
        os.write(theirs, b"nobody reads it")
    plugin.handle(record(event=LogEvent.PROGRESS, done=3, total=18))
    plugin.close()
    os.close(theirs)
