"""The part of docs/record.md that is made from the record's schema: its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rlvr_debug.checkout import ROOT
from rlvr_debug.files import read_yaml
from rlvr_debug.replay.settings import Settings

__all__ = ["settings_text"]


def settings_text() -> str:
    """Return a table of what a record's settings may be, and what stands for one that is left out."""
    schema = read_yaml(ROOT / "src" / "rlvr_debug" / "replay" / "record.schema.yaml")["$defs"]
    told = schema["settings"]
    lines = ["| setting | what | values | left out |", "| --- | --- | --- | --- |"]
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, entry in told["properties"].items():
        limits = {**schema[Path(entry["$ref"]).name], **entry} if "$ref" in entry else entry
        required = name in told["required"]
        left_out = "an error" if required else f"`{_as_json(name, defaults[name])}`"
        lines.append(f"| `{name}` | {entry['description']} | {_values(limits)} | {left_out} |")
    return "\n".join(lines)


def _as_json(name: str, default: object) -> str:
    return "{}" if name == "template_options" else json.dumps(default)


def _values(entry: Mapping[str, Any]) -> str:
    """Return the values that a schema allows, in words."""
    if "enum" in entry:
        return ", ".join(f"`{json.dumps(each)}`" for each in entry["enum"])
    kinds = {"integer": "whole number", "number": "number", "boolean": "true or false"}
    kinds |= {"string": "text", "array": "list", "object": "object", "null": "null"}
    types = entry["type"] if isinstance(entry["type"], list) else [entry["type"]]
    said = " or ".join(kinds[each] for each in types)
    least, most = entry.get("minimum"), entry.get("maximum")
    if least is not None and most == 1:
        return f"{said} from {least} to {most}"
    if least is not None:
        return f"{said} from {least}"
    return f"{said} above 0" if "exclusiveMinimum" in entry else said
