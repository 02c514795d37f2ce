"""The kinds of kinds.yaml, the runs of each, and which are held out together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["AGAIN", "AREAS", "FOLDS", "HELD_OUT", "HERE", "Kind", "fold_of", "load_kinds"]

HERE = Path(__file__).parent
FOLDS = 3
# whose kinds nobody looked at when checks and their bounds were made; those of the others were
HELD_OUT = 2
# the number of a known kind's first run under another seed, on which no bound and no weight was set
AGAIN = 100


@dataclass(frozen=True)
class Kind:
    """A kind of mistake, or healthy.

    causes: any is right, none of a healthy kind. runs: told to a training each. fold: kinds that are held out together.
    """

    name: str
    causes: tuple[str, ...]
    runs: tuple[Mapping[str, Any], ...]
    fold: int

    def numbered(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield each run with its number, and the first one of a known kind once more."""
        yield from enumerate(self.runs)
        if self.fold != HELD_OUT:
            yield AGAIN, self.runs[0]


def fold_of(name: str) -> int:
    """Return the fold of a kind, by its name alone: 0, 1 or 2."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % FOLDS


def _told() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load((HERE / "kinds.yaml").read_text(encoding="utf-8"))
    return found


def load_kinds() -> dict[str, Kind]:
    told = _told()
    found = {}
    for name, given in {**told["mistakes"], **told["healthy"], **told["later"]}.items():
        runs = tuple(_merged(given.get("all", {}), run) for run in given["runs"])
        fold = HELD_OUT if name in told["later"] else fold_of(name)
        found[name] = Kind(name, tuple(given.get("causes", ())), runs, fold)
    return found


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, the second over the first; tables inside are merged too."""
    inner = {
        key: {**one[key], **value}
        for key, value in other.items()
        if isinstance(value, Mapping) and isinstance(one.get(key), Mapping)
    }
    return {**one, **other, **inner}


# area of each cause: what a user would look into first
AREAS: Mapping[str, str] = {
    cause: area for area, causes in _told()["areas"].items() for cause in causes
}
