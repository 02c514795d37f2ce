"""What is made of the models of params.yaml and of a record's settings: tables for the pages, and the JSON schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from lab.tables import cell, markdown
from rlvr_debug.blocks import json_schema
from rlvr_debug.replay.settings import Settings
from rlvr_debug.study.model import Params

# what cases and arms change is described where it stands in full; shares of hops and steps need no row each
_ELSEWHERE = ("training", "rollouts", "hops", "steps")
_BY_ENVIRONMENT = ("base_models", "data", "environments")
_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
}


def schema_text() -> str:
    """Return the JSON schema of params.yaml and of overlays, of which no key has to be there."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "params.yaml"}
    return json.dumps(schema | _unrequired(json_schema(Params)), indent=1) + "\n"


def _unrequired(node: Any) -> Any:
    if isinstance(node, list):
        return list(map(_unrequired, node))
    if not isinstance(node, dict):
        return node
    # a key of ours may be that word
    kept = {k: v for k, v in node.items() if k != "required" or not isinstance(v, list)}
    made = {key: _unrequired(value) for key, value in kept.items()}
    if "patternProperties" in made:
        made["additionalProperties"] = False
    for named in (made.get("additionalProperties"), *made.get("patternProperties", {}).values()):
        if isinstance(named, dict) and named.get("type") == "object":
            named["type"] = ["object", "null"]  # ~ removes it
    return made


def parameters_text() -> str:
    """Return a table of the plain keys of params.yaml, and one for each block of it."""
    schema = json_schema(Params)
    plain = {k: v for k, v in schema["properties"].items() if not list(_inside(v))}
    parts = [_table(_rows(plain))]
    for key, node in schema["properties"].items():
        if key not in plain:
            rows = _all_rows(node, "")
            shown = _shared(list(rows)) if key in _BY_ENVIRONMENT else rows
            parts += [f"## {key}", node["description"], _table(shown)]
    return "\n\n".join(parts)


def _shared(rows: list[list[str]]) -> Iterator[list[str]]:
    """Yield the rows of environments; those that all of them have once, with `<environment>` for the name.

    The row of an environment itself is left out where it only names a block of keys.
    """
    split = [(*row[0].strip("`").partition("."), row) for row in rows]
    environments = {name for name, dot, _, _ in split if not dot}
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for _, dot, key, row in split:
        alike.setdefault((dot + key, row[1], row[3]), []).append(row)
    apart = []
    for (key, values, said), group in alike.items():
        if len(group) == len(environments):
            defaults = " or ".join(dict.fromkeys(row[2] for row in group))
            yield [f"`<environment>{key}`", values, defaults, said]
        elif key or values:
            apart += group
    yield from sorted(apart)


def _inside(node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the keys that a value has, or `<name>` for names of the user's, each with what is said of it."""
    for one in (node, *node.get("oneOf", ()), *node.get("anyOf", ())):
        yield from one.get("properties", {}).items()
        for below in (one.get("additionalProperties"), *one.get("patternProperties", {}).values()):
            if isinstance(below, dict) and below.get("type") == "object":
                yield "<name>", below


def _all_rows(node: Mapping[str, Any], above: str) -> Iterator[list[str]]:
    """Yield the rows of everything that is inside of a value, by its key in full."""
    for key, below in _inside(node):
        full = f"{above}{key}"
        deeper = key not in _ELSEWHERE and list(_inside(below))
        if not deeper:
            yield from _rows({key: below}, above)
        else:
            yield [f"`{full}`", "", _shown(below), _said(below)]
            yield from _all_rows(below, f"{full}.")


def _rows(keys: Mapping[str, Mapping[str, Any]], above: str = "") -> Iterator[list[str]]:
    for key, node in keys.items():
        yield [f"`{above}{key}`", _values(node), _shown(node), _said(node)]


def _said(node: Mapping[str, Any]) -> str:
    return str(node["description"]).replace("<", "&lt;")


def _shown(node: Mapping[str, Any]) -> str:
    return f"`{json.dumps(node['default'])}`" if "default" in node else ""


def _values(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    limits = [text.format(f"{node[key]:g}") for key, text in _LIMITS.items() if key in node]
    if node.get("default") is not None:  # which shows the type
        return ", ".join(limits)
    kinds = [one.get("type", "") for one in node.get("oneOf", node.get("anyOf", [node]))]
    return ", ".join([" or ".join(kind for kind in kinds if kind != "null"), *limits])


def _table(rows: Iterator[list[str]]) -> str:
    return markdown("key | values | default | meaning", (map(cell, row) for row in rows))


# --- of a record


def settings_text() -> str:
    """Return a table of what a record's settings may be, and what stands for one that is left out."""
    schema = json_schema(Settings)
    rows = []
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, entry in schema["properties"].items():
        required = name in schema["required"]
        default = {} if name == "template_options" else defaults[name]
        left_out = "an error" if required else f"`{json.dumps(default)}`"
        values = _in_words(entry, plain=not required and defaults[name] is not None)
        rows.append((f"`{name}`", entry["description"], values, left_out))
    return markdown("setting | what | values | left out", rows)


def _in_words(entry: Mapping[str, Any], plain: bool) -> str:
    """Return the values that a schema allows, in words; without their type where it is `plain` from what stands beside."""
    if "enum" in entry:
        return ", ".join(f"`{json.dumps(each)}`" for each in entry["enum"])
    kinds = {"integer": "whole number", "number": "number", "boolean": "true or false"}
    kinds |= {"string": "text", "array": "list", "object": "object", "null": "null"}
    parts = entry.get("anyOf", [entry])
    kind = "" if plain else " or ".join(kinds[each.get("type", "object")] for each in parts)
    limits = {name: value for each in parts for name, value in each.items()}
    least, most = limits.get("minimum"), limits.get("maximum")
    if least is not None:
        kind += f" from {least:g}" + (f" to {most:g}" if most == 1 else "")
    return (f"{kind} above 0" if "exclusiveMinimum" in limits else kind).strip()
