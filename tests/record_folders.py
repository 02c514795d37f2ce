"""What tests of records share: how a folder is changed, what it is refused with, and what is found in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rlvr_debug.cli import main
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.settings import Sampling, Settings
from tests.in_process import called

__all__ = ["Change", "bare_record", "change", "line", "nothing", "only", "shares"]

Change = Callable[[dict[str, Any]], object]


def change(folder: Path, how: Change, name: str = "record.json") -> None:
    told = json.loads((folder / name).read_text(encoding="utf-8"))
    how(told)
    (folder / name).write_text(json.dumps(told), encoding="utf-8")


def line(folder: Path) -> str:
    """Return the line that a bad record is refused with, without the folder's path."""
    done = called(main, "rlvr-debug", "check", "--record", str(folder))
    assert (done.returncode, done.stdout) == (2, "")
    [said] = done.stderr.splitlines()
    return str(said).removeprefix("error: ").replace(f"{folder}/", "")


def shares(segments: Any) -> dict[str, tuple[str, float]]:
    return {each["segment"]: (each["status"], each["share"]) for each in segments}


def bare_record(**told: Any) -> Record:
    """A record without a model, and with nothing but what is told."""
    settings = Settings(2, Sampling(), 4)
    given = {"trainer": "bare", "settings": settings, "tokenizer": None, "tools": None}
    return Record(**{**given, "build": lambda: torch.nn.Linear(1, 1), **told})


def only(told: dict[str, Any], *names: str) -> None:
    for name in set(told) - {"version", "trainer", "settings", *names}:
        del told[name]


def nothing(told: dict[str, Any]) -> None:
    only(told)
