"""Studies of other trainers, in copies of the project: a trainer that is added, a program that goes wrong in one arm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from rlvr_debug.study.params import load_params
from tests.pages import BLOCK
from tests.test_workflow import ROOT, Project, copy

PROGRAM = str(ROOT / "tests" / "programs" / "misbehaving.py")
HYPOTHESES = {
    "lora-weight-sync": {"arms": {"forced-sync": None, "mended": {"options": {"fault": ""}}}}
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = copy(ROOT, tmp_path)
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
    why = "key 'reward' is float nan, expected number"
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
        "key 'trainer' is str 'mine', expected one of 'command', 'own', 'trl' or 'verifiers'"
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
