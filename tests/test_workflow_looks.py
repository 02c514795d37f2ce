"""Whole studies of the sequential design, killed and cloned, and of trainers that are added."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rlvr_debug.study.params import load_params
from rlvr_debug.verdicts.looks import look_file, read_look
from tests import test_dvc
from tests.pages import BLOCK
from tests.shared import once
from tests.test_dvc import CLI, Repository
from tests.test_workflow import MINI, ROOT, Project, copy, end, wait_for

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
    code = root / "src" / "rlvr_debug" / "verdicts" / "looks.py"
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


# --- other trainers


PROGRAM = str(ROOT / "tests" / "programs" / "misbehaving.py")
HYPOTHESES = {
    "lora-weight-sync": {"arms": {"forced-sync": None, "mended": {"options": {"fault": ""}}}}
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = copy(ROOT, tmp_path, forked=True)
    project.overlay(
        {
            "study": "mini",
            "trainer": "command",
            "command": {"program": ["python", PROGRAM], "stall_seconds": 60},
            "options": {"fault": ""},
            "case": "broken",
            "cases": {"broken": {"faults": [], "options": {"fault": "nan"}}},
            "environment": "gsm8k",
            "seeds": [0],
            "data": {"gsm8k": {"rows": 60, "heldout": 8}},
            "training": {"steps": 3, "prompts_per_step": 2, "group_size": 2},
            "hypotheses": {
                **dict.fromkeys(
                    ["hidden-context", "sequence-mismatch", "kl-penalty", "advantage-scaling"]
                ),
                "library-functionality": None,
                **HYPOTHESES,
            },
        }
    )
    return project


@pytest.mark.heavy
def test_the_study_says_which_run_went_wrong_and_why_and_once_mended_runs_that_alone(
    project: Project,
) -> None:
    done = project.run()
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    why = "key 'reward' is nan, expected a number"
    for line in lines[-2:]:
        assert line.startswith(("error: run gsm8k/case/0: ", "error: check of gsm8k/case/0: "))
        assert line.endswith(why)
    assert lines[-1] != lines[-2]
    runs = project.results / "runs" / "gsm8k"
    assert (runs / "control" / "0" / "heldout.json").exists()
    assert not (runs / "case" / "0" / "metrics.jsonl").exists()
    assert not (runs / "case" / "0" / "model.safetensors").exists()
    assert not (project.results / "tables").exists()

    path = project.root / "mini.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("fault: nan", "fault: fine"))
    assert project.to_do()["train"] == 1
    assert project.run().returncode == 0
    assert (project.results / "tables" / "verdicts.csv").exists()


@pytest.mark.heavy
def test_a_trainer_is_added_as_the_page_says(tmp_path: Path) -> None:
    """A folder is all of it: the study is accepted, and its runs are in the plan of the workflow."""
    project = copy(ROOT, tmp_path)
    blocks = BLOCK.findall((ROOT / "docs" / "extend.md").read_text(encoding="utf-8"))
    [code] = [body for language, body in blocks if language == "python" and "TRAINER" in body]
    [text] = [body for language, body in blocks if language == "yaml" and "trainer: mine" in body]
    shown = yaml.safe_load(text)
    others = dict.fromkeys(load_params(ROOT / "params.yaml").arms)
    changes = {"study": "mini", "seeds": [0, 1], "hypotheses": {**others, **shown["hypotheses"]}}
    overlay = {**shown, **changes}
    project.overlay(overlay)
    folder = project.root / "src" / "rlvr_debug" / "trainers" / "mine"
    folder.mkdir()
    unknown = project.run("--", "-n")
    assert unknown.returncode == 2
    assert (
        "key 'trainer' is text 'mine', expected one of 'command', 'own', 'trl' or 'verifiers'"
        in unknown.stderr
    )
    (folder / "__init__.py").write_text(code, encoding="utf-8")
    shutil.copy(ROOT / "examples" / "plain_grpo.py", folder / "program.py")
    jobs = project.to_do()
    # the case, which is the control, and one arm: no stage can be swapped, and no reward made random
    assert jobs["train"] == 4
    assert jobs["check_case"] == 1

    project.overlay({**overlay, "trainer": "yours"})
    unknown = project.run("--", "-n")
    assert unknown.returncode == 2
    assert "expected one of 'command', 'mine', 'own', 'trl' or 'verifiers'" in unknown.stderr
