"""The folder of a new hypothesis, with everything that one says."""

from __future__ import annotations

import re
from pathlib import Path

from rlvr_debug.errors import InputError, short
from rlvr_debug.files import write_text

_HERE = Path(__file__).parent


def write_hypothesis(slug: str, kind: str, folder: Path = _HERE) -> Path:
    """Write the cause.yaml of a new hypothesis, and of a cause its replay.yaml, to be filled in; return the first's path.

    kind: cause or localiser. Raise InputError for a bad name, or one that is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", slug):
        raise InputError(
            f"slug is {short(slug)}, expected words of a to z and 0 to 9 with hyphens between them"
        )
    path = folder / slug.replace("-", "_") / "cause.yaml"
    if path.exists():
        raise InputError(f"{path}: stands there already, expected a new name")
    parts = {path: "template.yaml"}
    if kind == "cause":
        parts[path.with_name("replay.yaml")] = "template_replay.yaml"
    for file, template in parts.items():
        text = (_HERE / template).read_text(encoding="utf-8")
        write_text(file, text.replace("{slug}", slug).replace("{kind}", kind))
    return path
