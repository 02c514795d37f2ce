"""The JSON schema of params.yaml: params.schema.yaml, with what the folders of environments and trainers say."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from rlvr_debug.environments import environment_names, settings_of
from rlvr_debug.files import read_yaml
from rlvr_debug.trainers import trainer_names

__all__ = ["environment_defaults", "schema"]

_SCHEMA = Path(__file__).with_name("params.schema.yaml")


@functools.cache
def schema() -> dict[str, Any]:
    """Return the whole schema: every key with its description and, where it has one, its default."""
    whole: dict[str, Any] = read_yaml(_SCHEMA)
    properties, definitions = whole["properties"], whole["$defs"]
    names = environment_names()
    definitions["environment"]["enum"] = list(names)
    properties["trainer"]["enum"] = list(trainer_names())
    properties["base_models"]["properties"] = {
        name: {"$ref": "#/$defs/base_model"} for name in names
    }
    for block in ("data", "environments"):
        properties[block]["required"] = list(names)
        properties[block]["properties"] = {}
    for name in names:
        own = settings_of(name)
        rows, made_up = definitions["rows_of"], own["data"]["synthetic"]
        properties["data"]["properties"][name] = {
            **rows,
            "description": own["data"]["description"],
            "then": {"required": ["rows", *made_up]},
            "properties": {**rows["properties"], **made_up},
        }
        properties["environments"]["properties"][name] = {
            "type": "object",
            "additionalProperties": False,
            **own["environments"],
        }
        definitions["rollouts"]["properties"] |= {
            key: own["environments"]["properties"][key] for key in own["rollouts"]
        }
    return whole


def environment_defaults(block: str, name: str) -> dict[str, Any]:
    """Return the defaults of an environment's block of params.yaml: `data.<name>` or `environments.<name>`."""
    return _defaults(schema()["properties"][block]["properties"][name])


def _defaults(node: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of a mapping's keys, and of those of mappings in it."""
    return {
        key: child["default"] if "default" in child else _defaults(child)
        for key, child in node["properties"].items()
        if "default" in child or "properties" in child
    }
