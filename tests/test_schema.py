"""The schema of params.yaml tells every key's meaning, and what the shipped params.yaml says."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lab.pages import SCHEMA as FOR_EDITORS
from lab.parameters import schema_text
from rlvr_debug.blocks import json_schema, told
from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import environment_names
from rlvr_debug.files import read_yaml
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params, parse_params

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))

SCHEMA = json_schema(Params)
PARAMS = load_params(ROOT / "params.yaml")
# names of the user's, and what they hold: what the study is about has no default
OPEN = {"cases", "hypotheses"}
# that params.yaml leaves out (test_config.py holds them to the environment)
LEFT_OUT = {
    "first_seed",
    "unnamed",
    "diagnostics.debug",
    "evaluation.verifiers_rows",
    *(f"environments.{name}.max_context" for name in environment_names()),
    *(
        f"environments.musique.{key}"
        for key in ("retrieval_model", "noise_rate", "noise_seed", "answer_by", "hop_factor")
    ),
}


def keys(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key that the schema names, in full, and what it says of it; `*` is a name of the user's."""
    for kind in (node, *node.get("oneOf", ()), *node.get("anyOf", ())):
        children = list(kind.get("properties", {}).items())
        children += [("*", child) for child in kind.get("patternProperties", {}).values()]
        if isinstance(kind.get("additionalProperties"), dict):
            children.append(("*", kind["additionalProperties"]))
        for name, child in children:
            full = f"{path}.{name}".removeprefix(".")
            yield full, child
            yield from keys(child, full)


def values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of params.yaml by key."""
    for name, item in value.items():
        full = f"{path}.{name}".removeprefix(".")
        if name in OPEN and not path:
            continue
        if isinstance(item, dict) and item:
            yield from values(item, full)
        else:
            yield full, item


KEYS = dict(keys(SCHEMA))


def test_every_key_has_a_description() -> None:
    told = {key: node.get("description", "").strip() for key, node in KEYS.items()}
    assert [key for key, said in told.items() if not said.endswith(".")] == []


def test_every_plain_value_of_params_is_the_default_that_the_schema_tells() -> None:
    defaults: dict[str, Any] = {}
    for key, node in KEYS.items():
        if "default" in node and key.partition(".")[0] not in OPEN:
            defaults |= values({key: node["default"]})
    defaults = {key: value for key, value in defaults.items() if key not in LEFT_OUT}
    # as JSON: 1 and true are not the same
    shipped = dict(values(told(PARAMS)))
    assert json.dumps(defaults, sort_keys=True) == json.dumps(shipped, sort_keys=True)


def test_every_default_is_a_value_that_the_key_may_have() -> None:
    for node in KEYS.values():
        if "default" in node:
            jsonschema.validate(node["default"], node)


# --- the JSON schema for editors

FILES = [ROOT / "params.yaml", *ROOT.glob("studies/*.yaml"), *ROOT.glob("tests/studies/*.yaml")]
VALIDATOR = jsonschema.Draft202012Validator(json.loads(FOR_EDITORS.read_text(encoding="utf-8")))


def test_the_schema_for_editors_is_that_of_the_model() -> None:
    assert FOR_EDITORS.read_text(encoding="utf-8") == schema_text(), "run python -m lab.pages"


def read(path: Path) -> dict[str, Any]:
    return parse_params(path.read_text(encoding="utf-8"), str(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_shipped_study_is_right_by_the_schema_for_editors(path: Path) -> None:
    assert list(VALIDATOR.iter_errors(read(path))) == []


@pytest.mark.parametrize(("place", "key", "value"), CASES["an editor marks what the model refuses"])
def test_an_editor_marks_what_the_model_refuses(place: str, key: str, value: Any) -> None:
    params = deepcopy(read(ROOT / "params.yaml"))
    params[place][key] = value
    [error] = VALIDATOR.iter_errors(params)
    assert error.absolute_path[0] == place
