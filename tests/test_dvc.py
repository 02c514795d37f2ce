"""DVC around the workflow: what it calls up to date, Snakemake finds nothing to do in, and the other way round.

In git repositories that are copies of the project, whose default study is of four runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.utils.hydra import apply_overrides  # type: ignore[import-untyped]

from rlvr_debug.errors import InputError
from rlvr_debug.files import sha256
from rlvr_debug.study.params import load_params, merge, parse_params
from rlvr_debug.study.tracking import track
from tests.shared import job_forks, once
from tests.test_workflow import LEFT_OUT, MINI, PARTS, ROOT

KEPT = (*PARTS, "dvc.yaml", ".dvc/config", ".dvc/plots", ".dvcignore", ".gitignore")
PARAMS = merge(
    parse_params((ROOT / "params.yaml").read_text(encoding="utf-8"), "params.yaml"),
    {**MINI, "study": "default"},
)
KL_BETA = "++hypotheses.kl-penalty.arms.kl-beta-0.training.kl_beta"
OVERLAY = {"study": "other", "seeds": [1], "hypotheses": {"kl-penalty": None}}
# of an arm that is the only one to differ
ONE_RUN = {"train": 1, "evaluate_run": 1}


def test_the_documented_experiment_changes_the_shipped_parameters(tmp_path: Path) -> None:
    """The arm is {} there: dvc refuses a key that is not, but for the two signs."""
    path = tmp_path / "params.yaml"
    shutil.copy(ROOT / "params.yaml", path)
    [key] = re.findall(r"^KEY=(.*)$", (ROOT / "docs" / "dvc.md").read_text("utf-8"), re.MULTILINE)
    assert key == KL_BETA
    apply_overrides(path, [f"{key}=0.5"])
    arms = load_params(path).arms["kl-penalty"]
    assert arms["kl-beta-0"].training == {"kl_beta": 0.5}


# with the interpreter of the tests, and the repository's own library
CLI = ("python", "-m", "rlvr_debug.cli")


class Repository:
    """A git repository, and what users do in it. Beside it: DVC's remote."""

    def __init__(self, root: Path) -> None:
        self.root = root
        nowhere = str(root.parent / "settings")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SNAKEMAKE")}
        self.environment = {
            **kept,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(root / "src"), job_forks().folder]),
            # no settings of whoever runs the tests, and nothing written there
            **dict.fromkeys(("DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"), nowhere),
            "DVC_SITE_CACHE_DIR": nowhere,
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def run(self, *command: str) -> str:
        """All that it says."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments)

    def dvc(self, *arguments: str) -> str:
        return self.run("dvc", *arguments)

    def study(self, *options: str) -> str:
        """What Snakemake says as it runs."""
        return self.run(*CLI, "run", "--verbose", "--cores", "2", *options)

    def params(self, over: Mapping[str, Any]) -> None:
        """Change params.yaml as an overlay would."""
        text = yaml.safe_dump(merge(PARAMS, dict(over)), sort_keys=False)
        (self.root / "params.yaml").write_text(text, encoding="utf-8")

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-qm", "results")

    def nothing_to_do(self, *options: str, stage: str = "study") -> bool:
        """As Snakemake and DVC both say. options: of the study."""
        jobs = json.loads(self.run(*CLI, "plan", "--json", *options))["jobs"]
        changed = json.loads(self.dvc("status", "--json"))
        assert (stage in changed) == bool(jobs), (jobs, changed)
        return not jobs

    def bytes(self) -> dict[str, str]:
        """Digests of the default study's splits and results, and of what Snakemake knows of them.

        Not of jobs.json, which each run of Snakemake writes for its jobs and nothing keeps.
        """
        places = [self.root / place for place in ("data/splits", "results", ".snakemake/metadata")]
        files = (path for place in places for path in place.rglob("*") if path.is_file())
        kept = (path for path in files if path.name != "jobs.json")
        return {str(path.relative_to(self.root)): sha256(path) for path in kept}

    def clone(self) -> Repository:
        """As somebody else has it, without any results that git does not keep."""
        self.git("clone", "-q", str(self.root), str(self.root.with_name("clone")))
        return Repository(self.root.with_name("clone"))


def ran(said: str) -> dict[str, int]:
    """Trainings and held-out evaluations of runs that Snakemake finished."""
    finished = Counter(re.findall(r"Finished jobid: \d+ \(Rule: (\w+)\)", said))
    return {rule: finished[rule] for rule in ("train", "evaluate_run") if finished[rule]}


def project(root: Path) -> Repository:
    """A copy of the project, not run yet."""
    for name in KEPT:
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=LEFT_OUT)
        else:
            shutil.copy2(source, target)
    shutil.copytree(
        ROOT / "results", root / "results", ignore=lambda _, names: {*names} - {".gitignore"}
    )
    repository = Repository(root)
    repository.params({})
    repository.git("init", "-q")
    for key in ("user.name", "user.email"):
        repository.git("config", key, "some@one")
    return repository


def copy(repository: Repository, place: Path) -> Repository:
    """With its remote."""
    shutil.copytree(repository.root.parent, place, dirs_exist_ok=True)
    return Repository(place / repository.root.name)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """The default study is run, recorded, committed and pushed; not to be changed."""

    def make(place: Path) -> None:
        repository = project(place / "project")
        repository.dvc("remote", "add", "--default", "local", "../remote")
        assert ran(repository.study()) == {"train": 4, "evaluate_run": 4}
        assert ran(repository.dvc("repro")) == {}
        repository.commit()
        repository.dvc("push")

    return Repository(once(tmp_path_factory, "dvc", make) / "project")


@pytest.fixture
def recorded(original: Repository, tmp_path: Path) -> Repository:
    return copy(original, tmp_path)


# --- the default study


@pytest.mark.heavy
def test_a_recorded_study_has_nothing_to_do_and_a_comment_changes_nothing(
    recorded: Repository,
) -> None:
    assert recorded.nothing_to_do()
    with (recorded.root / "params.yaml").open("a") as file:
        file.write("# another line\n")
    assert recorded.nothing_to_do()
    assert "up to date" in recorded.dvc("repro")
    recorded.git("checkout", "params.yaml")
    assert recorded.git("status", "--porcelain") == ""


@pytest.mark.heavy
def test_values_are_changed_and_taken_back_with_one_training(recorded: Repository) -> None:
    old = recorded.bytes()
    recorded.params(arm(kl_beta=0.5))
    assert not recorded.nothing_to_do()
    assert ran(recorded.dvc("repro")) == ONE_RUN
    assert recorded.nothing_to_do()
    recorded.commit()
    new = recorded.bytes()
    assert changed_runs(old, new) == {"kl-beta-0"}

    for revision, expected in (("HEAD~1", old), ("-", new)):
        recorded.git("checkout", "-q", revision)
        assert not recorded.nothing_to_do()
        recorded.dvc("checkout")
        assert recorded.nothing_to_do()
        assert recorded.bytes() == expected

    curves = ("--targets", "results/tables/curves.csv")
    drawn = recorded.dvc("plots", "diff", "HEAD~1", "HEAD", "--show-vega", *curves)
    assert all(f'"rev": "{revision}"' in drawn for revision in ("HEAD~1", "HEAD"))


def arm(**training: Any) -> dict[str, Any]:
    return {"hypotheses": {"kl-penalty": {"arms": {"kl-beta-0": {"training": training}}}}}


def changed_runs(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    """Arms whose weights differ."""
    weights = [path for path in {*old, *new} if path.endswith("/model.safetensors")]
    assert weights
    return {path.split("/")[3] for path in weights if old.get(path) != new.get(path)}


@pytest.mark.heavy
def test_a_fresh_clone_has_nothing_to_do_once_it_has_pulled(
    original: Repository, tmp_path: Path
) -> None:
    clone = copy(original, tmp_path).clone()
    assert not clone.nothing_to_do()
    clone.dvc("pull")
    assert clone.nothing_to_do()
    assert clone.bytes() == original.bytes()
    assert clone.git("status", "--porcelain") == ""


@pytest.mark.heavy
def test_an_experiment_elsewhere_leaves_the_working_tree_alone_until_it_is_applied(
    recorded: Repository,
) -> None:
    old = recorded.bytes()
    said = recorded.dvc("exp", "run", "--temp", "--name", "elsewhere", "-S", f"{KL_BETA}=0.5")
    assert ran(said) == ONE_RUN
    assert recorded.bytes() == old
    assert recorded.nothing_to_do()
    assert recorded.dvc("exp", "list", "--name-only").split() == ["elsewhere"]
    recorded.dvc("exp", "apply", "elsewhere")
    assert recorded.nothing_to_do()
    assert changed_runs(old, recorded.bytes()) == {"kl-beta-0"}


@pytest.mark.heavy
def test_a_queued_experiment_runs_the_code_that_it_was_queued_with(recorded: Repository) -> None:
    recorded.dvc("exp", "run", "--queue", "--name", "queued", "-S", f"{KL_BETA}=0.5")
    # the library of the working tree is the one that is installed
    with (recorded.root / "src/rlvr_debug/grpo/trainer.py").open("a") as file:
        file.write("raise RuntimeError('newer code')\n")
    assert ran(recorded.dvc("exp", "run", "--run-all")) == ONE_RUN
    assert recorded.dvc("exp", "list", "--name-only").split() == ["queued"]
    recorded.git("checkout", "src")
    assert recorded.nothing_to_do()


@pytest.mark.heavy
def test_a_removed_hypothesis_trains_nothing_and_is_pruned(recorded: Repository) -> None:
    old = recorded.bytes()
    recorded.params({"hypotheses": {"kl-penalty": None}})
    assert not recorded.nothing_to_do()
    assert ran(recorded.dvc("repro")) == {}
    assert recorded.nothing_to_do()
    recorded.run(*CLI, "prune")
    assert changed_runs(old, recorded.bytes()) == {"kl-beta-0"}
    # Snakemake does not miss what it does not want; DVC records that it is gone
    assert ran(recorded.dvc("repro")) == {}
    assert recorded.nothing_to_do()
    recorded.git("checkout", ".")
    recorded.dvc("checkout")
    assert recorded.nothing_to_do()
    assert recorded.bytes() == old


@pytest.mark.heavy
def test_an_added_hypothesis_trains_only_its_own_runs(recorded: Repository) -> None:
    old = recorded.bytes()
    unscaled = {"arms": {"no-scaling": {"training": {"scale_rewards": "none"}}}}
    recorded.params({"hypotheses": {"advantage-scaling": unscaled}})
    assert not recorded.nothing_to_do()
    assert ran(recorded.dvc("repro")) == ONE_RUN
    assert recorded.nothing_to_do()
    assert changed_runs(old, recorded.bytes()) == {"no-scaling"}


# --- a study of an overlay

OTHER = ("--overlay", "studies/other.yaml")
STAGE = "studies/other/dvc.yaml"


def overlay(repository: Repository, over: Mapping[str, Any] = OVERLAY) -> Path:
    path = repository.root / "studies" / "other.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(dict(over)), encoding="utf-8")
    return path


def put_under_dvc(repository: Repository) -> None:
    repository.run(*CLI, "track", *OTHER)


@pytest.fixture(scope="module")
def beside(original: Repository, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """With a study of an overlay that is run, and not under DVC; not to be changed."""

    def make(place: Path) -> None:
        repository = copy(original, place)
        overlay(repository)
        assert ran(repository.study(*OTHER)) == {"train": 3, "evaluate_run": 3}

    return Repository(once(tmp_path_factory, "dvc-beside", make) / "project")


@pytest.mark.heavy
def test_a_study_beside_the_default_leaves_it_untouched(
    original: Repository, beside: Repository
) -> None:
    assert beside.bytes() == original.bytes()
    assert beside.nothing_to_do()
    assert beside.git("status", "--porcelain") == "?? studies/\n"
    assert beside.git("ls-files", "-o", "--exclude-standard").split() == ["studies/other.yaml"]


@pytest.mark.heavy
def test_a_study_that_was_run_is_put_under_dvc_without_running_anything(
    beside: Repository, tmp_path: Path
) -> None:
    repository = copy(beside, tmp_path)
    put_under_dvc(repository)
    assert "study" in repository.dvc("status", STAGE)
    assert ran(repository.dvc("repro", STAGE)) == {}
    stage = f"{STAGE}:study"
    assert repository.nothing_to_do(*OTHER, stage=stage)
    assert repository.nothing_to_do()
    repository.commit()
    repository.dvc("push")
    put_under_dvc(repository)
    assert repository.git("status", "--porcelain") == ""

    clone = repository.clone()
    kept = {path.name for path in (clone.root / "studies/other/results").iterdir()}
    files = {"check.json", "metrics.json", "report.html", "study.json"}
    assert kept == files | {"audit", "charts", "tables"}
    clone.dvc("pull")
    assert clone.nothing_to_do(*OTHER, stage=stage)
    assert clone.nothing_to_do()

    overlay(repository, {**OVERLAY, "verdicts": {"minimum_effect": 0.2}})
    assert not repository.nothing_to_do(*OTHER, stage=stage)
    assert repository.nothing_to_do()
    assert ran(repository.dvc("repro", STAGE)) == {}
    assert repository.nothing_to_do(*OTHER, stage=stage)


@pytest.fixture
def fresh(tmp_path: Path) -> Repository:
    return project(tmp_path)


def stage_of(folder: Path) -> Any:
    return yaml.safe_load((folder / "dvc.yaml").read_text(encoding="utf-8"))["stages"]["study"]


@pytest.mark.heavy
def test_a_user_s_own_rows_beside_the_splits_outlive_every_command(fresh: Repository) -> None:
    """Of a study whose results are made up: what DVC takes away and brings back is what dvc.yaml names."""
    fresh.dvc("remote", "add", "--default", "local", "../remote")
    splits, stage = fresh.root / "data" / "splits", stage_of(fresh.root)
    for each in [*stage["outs"], *stage["metrics"]]:
        [path] = (fresh.root / name for name in each)
        file = path if path.suffix else path / "file"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("old", encoding="utf-8")
    record(fresh)
    names = ("mine.jsonl", "mine/train.jsonl", "real/mine.jsonl")
    own = [fresh.root / "data" / name for name in names]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine", encoding="utf-8")
    (splits / "file").write_text("new", encoding="utf-8")
    record(fresh, "-u")

    fresh.git("checkout", "-q", "HEAD~1")
    fresh.dvc("checkout")
    assert (splits / "file").read_text(encoding="utf-8") == "old"
    shutil.rmtree(splits)
    fresh.dvc("pull", "--force")
    assert (splits / "file").read_text(encoding="utf-8") == "old"
    for command in ("prune", "clean"):
        fresh.run(*CLI, command)
    assert not splits.exists()
    assert [path.read_text(encoding="utf-8") for path in own] == ["mine"] * 3


def record(repository: Repository, which: str = ".") -> None:
    """Record, commit and push what is there. which: files for git, -u for those that it has already."""
    repository.dvc("commit", "--force")
    repository.git("add", which)
    repository.git("commit", "-qm", "results")
    repository.dvc("push")


def test_a_study_can_be_tracked_before_it_is_run(fresh: Repository) -> None:
    folder = track(overlay(fresh), every_phase=True, root=fresh.root)
    assert folder == fresh.root / "studies" / "other"
    stage, default = stage_of(folder), stage_of(fresh.root)
    assert stage["cmd"].endswith("/Snakefile --config overlay=../other.yaml phases=all")
    assert [stage[key] for key in ("outs", "metrics")] == [
        default[key] for key in ("outs", "metrics")
    ]
    assert f"{STAGE}:study" in json.loads(fresh.dvc("status", "--json"))


def test_a_tracked_study_depends_on_the_user_s_own_files(fresh: Repository) -> None:
    (fresh.root / "rows.jsonl").write_text("", encoding="utf-8")
    (fresh.root / "own.py").write_text("", encoding="utf-8")
    own = {
        "study": "own",
        "trainer": "command",
        "command": {"program": ["python", "./own.py"]},
        "case": "healthy",
        "environment": "gsm8k",
        "hypotheses": dict.fromkeys(PARAMS["hypotheses"]),
        "data": {"gsm8k": {"source": "jsonl", "path": "rows.jsonl"}},
    }
    found = stage_of(track(overlay(fresh, own), root=fresh.root))["deps"]
    usual = [f"../../{path}" for path in stage_of(fresh.root)["deps"]]
    assert found == [*usual, "../../rows.jsonl", "../../own.py"]


def test_the_study_of_real_rows_depends_on_the_files_that_git_keeps(fresh: Repository) -> None:
    path = fresh.root / "studies" / "real.yaml"
    path.parent.mkdir()
    shutil.copy(ROOT / "params.yaml", fresh.root)
    shutil.copy(ROOT / "studies" / "real.yaml", path)
    shutil.copytree(ROOT / "data" / "real", fresh.root / "data" / "real")
    found = stage_of(track(path, root=fresh.root))["deps"]
    rows = [f"../../data/real/{name}/rows.jsonl" for name in ("gsm8k", "musique")]
    assert {*rows} <= {*found}
    fresh.git("add", ".")
    assert {row.removeprefix("../../") for row in rows} <= {*fresh.git("ls-files").split()}


def test_an_overlay_that_git_cannot_keep_is_one_line(
    fresh: Repository, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("elsewhere") / "other.yaml"
    with pytest.raises(InputError, match=r"other\.yaml: No such file"):
        track(path, root=fresh.root)
    path.write_text(yaml.safe_dump(OVERLAY), encoding="utf-8")
    with pytest.raises(InputError, match=r"other\.yaml: is outside .*; move it there, so that git"):
        track(path, root=fresh.root)
    assert not (fresh.root / "studies").exists()
