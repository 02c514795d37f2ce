"""The kinds of kinds.yaml, and which are held out together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlvr_debug.files import read_yaml

HERE = Path(__file__).parent
FOLDS = 3
# whose kinds nobody looked at when checks and their bounds were made; those of the others were
HELD_OUT = 2
# the fold of what others planted, on which nothing was set either
OTHERS = 3
# the number of a known kind's first run under another seed, on which no bound and no weight was set
AGAIN = 100


@dataclass(frozen=True)
class Kind:
    """A kind of mistake, or healthy.

    causes: any is right, none of a healthy kind. fold: kinds that are held out together. runs: the settings of each.
    """

    name: str
    causes: tuple[str, ...]
    fold: int
    runs: tuple[Mapping[str, Any], ...] = ()

    def settings_of(self, run: int) -> Mapping[str, Any]:
        """Return the settings of the run of this number by TRL's names. A known kind's second run has those of its first one."""
        return self.runs[run % AGAIN]


def fold_of(name: str) -> int:
    """Return the fold of a kind, by its name alone: 0, 1 or 2."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % FOLDS


_TOLD: Mapping[str, Any] = read_yaml(HERE / "kinds.yaml")


@cache
def load_kinds() -> Mapping[str, Kind]:
    found = {}
    for name, given in {**_TOLD["mistakes"], **_TOLD["healthy"], **_TOLD["later"]}.items():
        fold = HELD_OUT if name in _TOLD["later"] else fold_of(name)
        runs = tuple(_settings(given.get("all", {}), run) for run in given["runs"])
        found[name] = Kind(name, tuple(given.get("causes", ())), fold, runs)
    return found


def _settings(of_all: Mapping[str, Any], of_one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings by TRL's names; without the limit on a turn, which is none on a conversation."""
    given = ({**each.get("training", {}), **each.get("settings", {})} for each in (of_all, of_one))
    changed = {_TOLD["trl"].get(n, n): v for each in given for n, v in each.items()}
    has_turns = "musique" in (of_all.get("environment"), of_one.get("environment"))
    found = {**_TOLD["settings"], **changed}
    return {n: v for n, v in found.items() if not (has_turns and n == "max_completion_length")}
