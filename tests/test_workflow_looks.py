"""A study of the sequential design as a whole: its looks choose its runs, whatever ends it in between.

In git repositories that are copies of the project, whose default study it is, and beside them as an overlay's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.verdicts.looks import look_file, read_look
from tests import test_dvc
from tests.shared import once
from tests.test_dvc import CLI, Repository
from tests.test_workflow import MINI, ROOT, copy, end, wait_for

# what no look decides on so few rows, so that every arm gets all the runs that it may have
LOOKED: dict[str, Any] = {
    "design": "sequential",
    "case": "healthy",
    "data": {"musique": {"rows": 60, "heldout": 16}},
    "training": {**MINI["training"], "learning_rate": 3e-3, "warmup_steps": 0},
    "hypotheses": {
        **MINI["hypotheses"],
        "lora-weight-sync": None,
        "kl-penalty": {"arms": {"kl-beta-0": None, "slow": {"training": {"learning_rate": 1e-6}}}},
    },
    "verdicts": {"minimum_effect": 1e-6},
}
MOST, FEWER = "MOST, LARGEST = 6, 8", "MOST, LARGEST = 3, 4"
RUNS = "results/runs/musique"


def fewer(root: Path) -> None:
    """Have the looks of that copy end at three runs of an arm and four of the case."""
    code = root / "src" / "rlvr_debug" / "verdicts" / "sequential.py"
    text = code.read_text(encoding="utf-8")
    assert text.count(MOST) == 1
    code.write_text(text.replace(MOST, FEWER), encoding="utf-8")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Its study is run, recorded, committed and pushed; not to be changed."""

    def make(place: Path) -> None:
        repository = test_dvc.project(place / "project")
        fewer(repository.root)
        repository.params(LOOKED)
        repository.dvc("remote", "add", "--default", "local", "../remote")
        repository.study()
        repository.dvc("repro")
        repository.commit()
        repository.dvc("push")

    return Repository(once(tmp_path_factory, "looked", make) / "project")


@pytest.fixture
def recorded(original: Repository, tmp_path: Path) -> Repository:
    return test_dvc.copy(original, tmp_path)


def trained(root: Path) -> set[str]:
    """The runs that are there, as arm/seed."""
    return {"/".join(path.parts[-3:-1]) for path in root.glob(f"{RUNS}/*/*/heldout.json")}


def tables(root: Path) -> dict[str, bytes]:
    paths = [root / "results" / "metrics.json", *sorted((root / "results/tables").glob("*"))]
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.heavy
def test_looks_choose_the_runs_and_tables_are_of_those(original: Repository) -> None:
    results = original.root / "results"
    looks = [read_look(path) for path in sorted(results.glob("tables/look_*.json"))]
    assert len(looks) > 1
    last = read_look(look_file(results, len(looks)))
    assert [look.more for look in looks] == [True] * (len(looks) - 1) + [False]
    assert looks[0].seeds["case"] < last.seeds["case"] + 1
    counts = pd.read_csv(results / "tables" / "runs.csv").groupby("arm")["seed"].nunique()
    assert counts.to_dict() == dict(last.seeds)
    # the control is the healthy case
    assert trained(original.root) == {
        f"{arm}/{seed}"
        for arm, count in last.seeds.items()
        for seed in range(count)
        if arm != "control"
    }


@pytest.mark.heavy
def test_a_finished_sequential_study_has_nothing_to_do_and_a_clone_neither(
    recorded: Repository,
) -> None:
    assert recorded.nothing_to_do()
    assert test_dvc.ran(recorded.dvc("repro")) == {}
    assert recorded.git("status", "--porcelain") == ""
    clone = recorded.clone()
    clone.dvc("pull")
    assert clone.nothing_to_do()
    assert tables(clone.root) == tables(recorded.root)


@pytest.mark.heavy
def test_prune_keeps_what_looks_chose_and_nothing_has_to_run_after_it(recorded: Repository) -> None:
    before = trained(recorded.root)
    for name in ("slow/5", "case/7"):  # as looks of another processor may choose them
        shutil.copytree(recorded.root / RUNS / "slow" / "0", recorded.root / RUNS / name)
    assert len(recorded.run(*CLI, "prune").splitlines()) == 2
    assert trained(recorded.root) == before
    recorded.dvc("repro")
    assert recorded.nothing_to_do()


@pytest.mark.heavy
def test_a_study_that_is_killed_between_two_looks_goes_on_and_ends_with_the_same_bytes(
    original: Repository, tmp_path: Path
) -> None:
    project = copy(ROOT, tmp_path)
    fewer(project.root)
    project.overlay({**LOOKED, "study": "mini"})
    process = project.start("--cores", "1")
    try:
        wait_for(project.results, "tables/look_1.json", process)
    finally:
        end(process)
    assert trained(project.study) < trained(original.root)
    done = project.run("--", "results/metrics.json")
    assert done.returncode == 0, done.stderr
    assert tables(project.study) == tables(original.root)
