"""The JSON schema for editors is that of the model, and takes what the model takes."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lab.pages import SCHEMA
from lab.parameters import schema_text
from rlvr_debug.checkout import ROOT
from rlvr_debug.study.params import parse_params

FILES = [ROOT / "params.yaml", *ROOT.glob("studies/*.yaml"), *ROOT.glob("tests/studies/*.yaml")]


VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_the_schema_for_editors_is_that_of_the_model() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run python -m lab.pages"


def read(path: Path) -> dict[str, Any]:
    return parse_params(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_shipped_study_is_right_by_the_schema_for_editors(path: Path) -> None:
    assert list(VALIDATOR.iter_errors(read(path))) == []


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("training", "learning_rat", 1e-4),
        ("training", "group_size", 1),
        ("training", "aggregation", "mean"),
        ("vllm", "port", 8000),
        ("seeds", "control", []),
        ("cases", "mine", {"faults": [], "training": {"steps": 0}}),
        ("cases", "Two words", {"faults": []}),
        ("environments", "gsm8k", {"weights": {"f1": 1.0}}),
    ],
)
def test_an_editor_marks_what_the_model_refuses(place: str, key: str, value: Any) -> None:
    params = deepcopy(read(ROOT / "params.yaml"))
    params[place][key] = value
    [error] = VALIDATOR.iter_errors(params)
    assert error.absolute_path[0] == place
