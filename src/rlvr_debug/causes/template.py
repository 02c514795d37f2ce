"""The folder of a new hypothesis, with everything that one says."""

from __future__ import annotations

import re
from pathlib import Path

from rlvr_debug.errors import InputError, short
from rlvr_debug.files import write_text

__all__ = ["write_hypothesis"]

_HERE = Path(__file__).parent


def write_hypothesis(slug: str, kind: str, folder: Path = _HERE) -> Path:
    """Write the cause.yaml of a new hypothesis, to be filled in, and return its path.

    kind: cause or localiser. Raise InputError for a bad name, or one that is taken.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", slug):
        raise InputError(
            f"slug is {short(slug)}, expected words of a to z and 0 to 9 with hyphens between them"
        )
    path = folder / slug.replace("-", "_") / "cause.yaml"
    if path.exists():
        raise InputError(f"{path}: stands there already, expected a new name")
    text = (_HERE / "template.yaml").read_text(encoding="utf-8")
    write_text(path, text.replace("{slug}", slug).replace("{kind}", kind))
    return path
