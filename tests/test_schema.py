"""The schema of params.yaml tells every key's meaning, and what the shipped params.yaml says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.study.params import load_params
from rlvr_debug.study.schema import schema

ROOT = Path(__file__).parents[1]
SCHEMA = schema()
PARAMS = load_params(ROOT / "params.yaml")
# names of the user's, and what they hold: what the study is about has no default
OPEN = {"cases", "hypotheses"}
# that params.yaml leaves out (test_config.py holds them to the environment)
LEFT_OUT = {
    f"environments.musique.{key}"
    for key in ("retrieval_model", "noise_rate", "noise_seed", "answer_by", "hop_factor")
}


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """With what its `$ref` says, unless it says otherwise itself."""
    if "$ref" not in node:
        return node
    found: Any = SCHEMA
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return {**resolved(found), **node}


def keys(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key that the schema names, in full, and what it says of it; `*` is a name of the user's."""
    node = resolved(node)
    children = dict(node.get("properties", {}))
    if isinstance(node.get("additionalProperties"), dict):
        children["*"] = node["additionalProperties"]
    for name, child in children.items():
        full = f"{path}.{name}".removeprefix(".")
        yield full, resolved(child)
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


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_a_description(key: str) -> None:
    assert KEYS[key].get("description", "").strip().endswith("."), key


def test_every_plain_value_of_params_is_the_default_that_the_schema_tells() -> None:
    told = {
        key: node["default"]
        for key, node in KEYS.items()
        if "default" in node and key.partition(".")[0] not in OPEN
    }
    shipped = dict(values(PARAMS))
    told = {key: value for key, value in told.items() if key not in LEFT_OUT}
    # as JSON: 1, 1.0 and true are not the same
    assert json.dumps(told, sort_keys=True) == json.dumps(shipped, sort_keys=True)
