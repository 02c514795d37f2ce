"""The kinds of kinds.yaml, and which are held out together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.files import read_yaml

HERE = Path(__file__).parent
FOLDS = 3
# whose kinds nobody looked at when checks and their bounds were made; those of the others were
HELD_OUT = 2
# the number of a known kind's first run under another seed, on which no bound and no weight was set
AGAIN = 100


@dataclass(frozen=True)
class Kind:
    """A kind of mistake, or healthy.

    causes: any is right, none of a healthy kind. fold: kinds that are held out together.
    """

    name: str
    causes: tuple[str, ...]
    fold: int


def fold_of(name: str) -> int:
    """Return the fold of a kind, by its name alone: 0, 1 or 2."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % FOLDS


_TOLD: Mapping[str, Any] = read_yaml(HERE / "kinds.yaml")


def load_kinds() -> dict[str, Kind]:
    found = {}
    for name, given in {**_TOLD["mistakes"], **_TOLD["healthy"], **_TOLD["later"]}.items():
        fold = HELD_OUT if name in _TOLD["later"] else fold_of(name)
        found[name] = Kind(name, tuple(given.get("causes", ())), fold)
    return found


# area of each cause: what a user would look into first
AREAS: Mapping[str, str] = {
    cause: area for area, causes in _TOLD["areas"].items() for cause in causes
}
