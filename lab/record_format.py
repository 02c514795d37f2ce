"""The part of docs/record.md that is made from the record's data classes: its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rlvr_debug.blocks import json_schema
from rlvr_debug.replay.settings import Settings


def settings_text() -> str:
    """Return a table of what a record's settings may be, and what stands for one that is left out."""
    schema = json_schema(Settings)
    lines = ["| setting | what | values | left out |", "| --- | --- | --- | --- |"]
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, entry in schema["properties"].items():
        required = name in schema["required"]
        left_out = "an error" if required else f"`{_as_json(name, defaults[name])}`"
        values = _values(entry, plain=not required and defaults[name] is not None)
        lines.append(f"| `{name}` | {entry['description']} | {values} | {left_out} |")
    return "\n".join(lines)


def _as_json(name: str, default: object) -> str:
    return "{}" if name == "template_options" else json.dumps(default)


def _values(entry: Mapping[str, Any], plain: bool) -> str:
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
