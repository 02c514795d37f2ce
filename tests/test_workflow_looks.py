"""A study of the sequential design as a whole: its looks choose its runs, whatever ends it in between."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.study.looks import look_file, read_look
from tests.shared import once
from tests.test_workflow import MINI, ROOT, Project, copy, end, wait_for

# what no look decides on so few rows, so that every arm gets all the runs that it may have
LOOKED: dict[str, Any] = {
    "study": "mini",
    "design": "sequential",
    "case": "healthy",
    "data": {"musique": {"rows": 60, "heldout": 16}},
    "training": {**MINI["training"], "learning_rate": 3e-3, "warmup_steps": 0},
    "hypotheses": {
        **MINI["hypotheses"],
        "lora-weight-sync": None,
        "kl-penalty": {"arms": {"slow": {"training": {"learning_rate": 1e-6}}}},
    },
    "verdicts": {"minimum_effect": 1e-6},
}
MOST = "MOST, LARGEST = 6, 8"


def looked(root: Path) -> Project:
    """A copy of the project, whose looks end at three runs of an arm and five of the case."""
    project = copy(ROOT, root)
    project.overlay(LOOKED)
    code = root / "src" / "rlvr_debug" / "verdicts" / "sequential.py"
    text = code.read_text(encoding="utf-8")
    assert text.count(MOST) == 1
    code.write_text(text.replace(MOST, "MOST, LARGEST = 3, 5"), encoding="utf-8")
    return project


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Its study is finished; not to be changed."""

    def make(root: Path) -> None:
        done = looked(root).run()
        assert done.returncode == 0, done.stderr

    return Project(once(tmp_path_factory, "looked", make))


@pytest.fixture
def finished(original: Project, tmp_path: Path) -> Project:
    project = looked(tmp_path)
    shutil.copytree(original.study, project.study)
    return project


def trained(project: Project) -> set[str]:
    """The runs that are there, as arm/seed."""
    places = project.results.glob("runs/musique/*/*/heldout.json")
    return {"/".join(path.parts[-3:-1]) for path in places}


@pytest.mark.heavy
def test_looks_choose_the_runs_and_tables_are_of_those(original: Project) -> None:
    looks = sorted(original.results.glob("tables/look_*.json"))
    assert len(looks) > 1
    last = read_look(look_file(original.results, len(looks)))
    assert not last.more
    counts = pd.read_csv(original.results / "tables" / "runs.csv").groupby("arm")["seed"].nunique()
    assert counts.to_dict() == dict(last.seeds)
    shared = {"control"}  # which is the healthy case
    assert trained(original) == {
        f"{arm}/{seed}"
        for arm, count in last.seeds.items()
        if arm not in shared
        for seed in range(count)
    }
    first = json.loads(looks[0].read_text(encoding="utf-8"))
    assert first["seeds"]["case"] < last.seeds["case"]


@pytest.mark.heavy
def test_a_finished_sequential_study_has_nothing_to_do_and_prune_keeps_what_was_chosen(
    finished: Project,
) -> None:
    assert finished.to_do() == {}
    before = trained(finished)
    for name in ("slow/5", "case/7"):  # as looks of another processor chose them
        shutil.copytree(
            finished.results / "runs/musique/slow/0", finished.results / "runs/musique" / name
        )
    stale = finished.results / "tables" / "look_9.json"
    command = ["python", "-m", "rlvr_debug.cli", "prune", "--overlay", "mini.yaml"]
    done = subprocess.run(
        command,
        cwd=finished.root,
        env=finished.environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert not stale.exists()
    assert trained(finished) == before
    assert finished.to_do() == {}


@pytest.mark.heavy
def test_a_study_that_is_killed_between_two_looks_goes_on_and_ends_with_the_same_bytes(
    original: Project, tmp_path: Path
) -> None:
    project = looked(tmp_path)
    process = project.start("--cores", "1")
    try:
        wait_for(project.results, "tables/look_1.json", process)
        wait_for(project.results, "runs/musique/*/2/model.safetensors", process)
    finally:
        end(process)
    assert trained(project) < trained(original)
    done = project.run("--", "results/metrics.json")
    assert done.returncode == 0, done.stderr
    assert project.tables() == original.tables()
