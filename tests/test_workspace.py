"""A study's folder: what is tidied there, who is at work, what is to do; what a run checks first and says last."""

import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import OutputSettingsLoggerInterface

from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_text
from rlvr_debug.replay.answer import first_answer
from rlvr_debug.replay.finding import AGREES, DEVIATES, NOT_SEEN
from rlvr_debug.study import running
from rlvr_debug.study.arms import runs
from rlvr_debug.study.folder import hold, last_run
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import plan
from rlvr_debug.study.running import (
    PROFILES,
    jobs_to_do,
    profile,
    runs_to_do,
    tidy,
    unlock,
    unnamed,
)
from snakemake_logger_plugin_rlvr_debug import LogHandler, LogHandlerSettings
from tests.study_file import changed

SMOKE = ROOT / "studies" / "smoke.yaml"
What = Literal["prune", "unlock", "clean"]
NEEDED = [
    "results/runs/musique/case/0/model.safetensors",
    "results/runs/musique/control/1/metrics.jsonl",
    "logs/train/musique/case/0.log",
    "logs/evaluate_run/musique/control/1.log",
    # not of runs: no business of prune
    "results/tables/verdicts.csv",
    "data/splits/calculator/train.jsonl",
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
        self.place = f"{self.folder.relative_to(root)}/".removeprefix("./")

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
    before, place = pruned.files(), pruned.place
    said = pruned.tidy("prune", dry_run=True)
    assert sorted(said) == sorted(f"would remove {place}{name}" for name in UNNAMED)
    assert pruned.files() == before
    assert pruned.tidy("prune") == [line.replace("would remove", "removed") for line in said]
    assert pruned.files() == set(NEEDED)
    nothing = f"{pruned.folder}: nothing to remove: params.yaml names every file"
    assert pruned.tidy("prune") == [nothing]


def test_every_run_that_a_study_trains_is_kept(project: Project) -> None:
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


def test_clean_leaves_what_git_tracks_the_environment_and_a_user_s_own_rows(
    project: Project,
) -> None:
    tracked = ["results/releases/a.json", "results/metrics.json", "params.yaml", ".gitignore"]
    project.add(*tracked)
    ignored = "logs/\n/results/runs\n.venv/\n.snakemake/\n/data/splits\n"
    write_text(project.folder / ".gitignore", ignored)
    project.track()
    kept = [".venv/bin/python", "notes.txt", "data/mine.jsonl", "data/real/mine.jsonl"]
    made = ["results/runs/musique/case/0/a", "logs/train.log", ".snakemake/metadata/a"]
    project.add(*kept, *made, "results/metrics.json", "results/new", "data/splits/a/train.jsonl")
    project.tidy("clean")
    assert project.files() == {*tracked, *kept}


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


@contextmanager
def snakemake(folder: Path) -> Iterator[int]:
    """The id of a process that looks like a Snakemake started by hand in the study."""
    words = [sys.executable, "-c", "print('ready', flush=True); input()", "-m", "snakemake"]
    with subprocess.Popen(
        words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.communicate("\n")


EACH = pytest.mark.parametrize("what", ["prune", "unlock", "clean"])


@EACH
def test_nothing_is_tidied_while_a_run_holds_the_study_or_snakemake_is_at_work(
    pruned: Project, what: What
) -> None:
    pruned.track()
    pruned.add(".snakemake/locks/0.input.lock", "results/new")
    before = pruned.files()
    another = r": another run of this study is under way; wait for it$"
    with hold(pruned.folder), pytest.raises(InputError, match=another):
        pruned.tidy(what)
    with snakemake(pruned.folder) as process:
        by_hand = rf": Snakemake \(process {process}\) is at work there"
        with pytest.raises(InputError, match=by_hand):
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
    with pytest.raises(InputError, match=r"^profile 'src': expected default, gpu, slurm, "):
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
    said = r"cannot be unlocked by snakemake --unlock: no such rule$"
    with pytest.raises(InputError, match=said):
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
    with snakemake(tmp_path):
        at_work, begun = last_run(tmp_path)
        assert at_work
        assert begun == pytest.approx(time.time(), abs=60)
        assert not last_run(tmp_path.parent)[0]
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
    of_runs = {("train", "musique/kl-beta-0/2"), ("evaluate_run", "gsm8k/case/0")}
    assert runs_to_do(tmp_path, command) == of_runs
    assert jobs_to_do(tmp_path, command) == {"train": 1, "evaluate_run": 1}
    assert jobs_to_do(tmp_path, writes_events()) == {}


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


# --- what a run checks first


DEFAULT = load_params(ROOT / "params.yaml")


def test_a_file_of_rows_that_is_missing_ends_a_study_before_it_begins(tmp_path: Path) -> None:
    missing: dict[str, Any] = {"musique": {"source": "jsonl", "path": "none.jsonl"}}
    overlay = tmp_path / "mine.yaml"
    overlay.write_text(json.dumps({"study": "mine", "data": missing}))
    with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
        plan(overlay)
    for asks_hub in (False, True):
        with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
            running.check_rows(changed(DEFAULT, data=missing), ROOT, asks_hub)


def test_a_dry_run_asks_no_hub_and_synthetic_rows_are_not_made_to_be_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []
    monkeypatch.setattr(running, "read_splits", lambda name, settings: read.append(name))
    on_hub = changed(DEFAULT, data={"gsm8k": {"source": "hub", "datasets": "some/rows"}})
    running.check_rows(on_hub, ROOT, asks_hub=False)
    running.check_rows(DEFAULT, ROOT, asks_hub=True)
    assert read == []
    running.check_rows(on_hub, ROOT, asks_hub=True)
    assert read == ["gsm8k"]


# --- what it says: the first answer, and last what failed


def test_of_a_job_that_never_began_an_earlier_runs_log_is_not_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old.log", "new.log"):
        (tmp_path / name).write_text(f"error: {name}\n", encoding="utf-8")
    os.utime(tmp_path / "old.log", (1, 1))
    assert not running._say_what_failed(tmp_path, ["old.log", "none.log"], begin=2.0)
    assert running._say_what_failed(tmp_path, ["old.log", "new.log"], begin=2.0)
    assert capsys.readouterr().err == "error: new.log\n"


@pytest.mark.parametrize(
    ("stats", "written", "told"),
    [
        ({"check_case": 1, "train": 2, "total": 4}, 50.0, []),  # an earlier study's
        ({"check_case": 1, "train": 2, "total": 4}, 150.0, [1]),
        ({"train": 2, "total": 3}, 50.0, [1]),  # it is not made again
        ({"train": 2, "total": 3}, None, []),
    ],
)
def test_the_check_is_told_of_once_and_only_where_it_is_of_this_study(
    tmp_path: Path, stats: dict[str, int], written: float | None, told: list[int]
) -> None:
    file = tmp_path / "check.json"
    if written:
        file.write_text("{}", encoding="utf-8")
        os.utime(file, (written, written))
    events: list[dict[str, Any]] = [{"event": "run_info", "stats": stats}]
    events += [{"event": "progress", "done": n, "total": 4} for n in (1, 2)]
    ours, theirs = os.pipe()
    with open(theirs, "w", encoding="utf-8") as pipe:
        pipe.writelines(f"{json.dumps(event)}\n" for event in events)
    # how many events there were, and which file is told of
    seen: list[int] = []
    found: list[tuple[int, Path]] = []
    check = running._Check(file, 100.0, lambda path: found.append((len(seen), path)))
    running._follow(ours, lambda done, of: seen.append(done), check)
    assert found == [(number, file) for number in told]


def test_the_first_answer_is_every_segment_that_deviates_with_its_causes() -> None:
    """Those of the names that give it; of a segment that nothing known gives, those that it speaks for."""

    def segment(name: str, status: str, *named: str, causes: tuple[str, ...] = ()) -> object:
        names = [{"name": cause, "cause": cause} for cause in named]
        return {"segment": name, "status": status, "names": names, "causes": causes}

    agreeing = segment("rewards", AGREES, causes=("reward-signal",))
    deviating = [
        segment("tokens", DEVIATES, "sequence-mismatch", "sequence-mismatch", causes=("a", "b")),
        segment("loss", DEVIATES, causes=("kl-penalty", "loss-aggregation")),
        segment("saved", DEVIATES),
    ]
    assert first_answer({"segments": [agreeing, *deviating, segment("sync", NOT_SEEN)]}) == (
        "the case differs from a healthy run in: tokens (sequence-mismatch), "
        "loss (kl-penalty or loss-aggregation), saved (nothing known); 1 of 5 segments was not seen: sync"
    )
    healthy = first_answer({"segments": [agreeing]})
    assert healthy == "the case's first steps are those of a healthy run"
    shipped = first_answer(read_json(ROOT / "results" / "check.json"))
    assert {"(sequence-mismatch)", "(hidden-context)"} < {*shipped.replace(",", "").split()}
