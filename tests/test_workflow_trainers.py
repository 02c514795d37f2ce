"""A study of a program that goes wrong in one arm, in a copy of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_study_says_which_run_went_wrong_and_why_and_once_mended_runs_that_alone(
    project: Project,
) -> None:
    done = project.run()
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    why = "key 'reward' is nan, expected a finite number"
    for line in lines[-2:]:
        assert line.startswith(("error: run gsm8k/case/0: ", "error: probe of gsm8k/case/0: "))
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
