"""Run a user's script under the check, in a process of its own that ends with this one."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.processes import guarded, last_line

__all__ = ["How", "check_script", "several_text"]

_PROGRAM = "rlvr_debug.recorders.trl.check_script"
_PIECE = 1 << 16
_WAIT = 10.0  # seconds


@dataclass(frozen=True)
class How:
    """steps: optimizer steps. rewards: whether reward functions are called again. save: a folder for the record."""

    steps: int = 3
    rewards: bool = True
    save: Path | None = None


def check_script(words: Sequence[str], how: How) -> Mapping[str, Any]:
    """Return what the check says of a script (replay/answer.py). words: its path and its arguments.

    What the script says goes to stderr. Raise InputError where it is none, or ends before its steps were recorded.
    """
    _need_one_process(words)
    script = Path(words[0])
    if not script.is_file():
        found = "is a folder" if script.is_dir() else "no such file"
        raise InputError(f"{script}: {found}, expected a script that trains with GRPOTrainer")
    if how.save is not None and how.save.exists():
        raise InputError(f"{how.save}: exists, expected a new folder for the record")
    with tempfile.TemporaryDirectory() as folder:
        out, told, log = (Path(folder, name) for name in ("answer.json", "told.json", "log"))
        record = None if how.save is None else str(how.save.resolve())
        write_json(
            told,
            {"out": str(out), "steps": how.steps, "rewards": how.rewards, "record": record},
        )
        argv = [sys.executable, "-m", _PROGRAM, str(told), *words]
        status = _run(argv, log)
        if out.is_file():
            answer: Mapping[str, Any] = read_json(out)
            return answer
        raise InputError(_why(script, status, log))


def several_text(count: int) -> str:
    """Return what is said of several processes."""
    return f"{count} processes train together, and the check records one alone"


def _need_one_process(words: Sequence[str]) -> None:
    """Raise InputError where a launcher started several of these; the first process says so.

    The others wait for it, since a launcher ends all processes when one has ended.
    """
    told = (os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK"))
    count, rank = (int(each) if each.isdecimal() else 0 for each in told)
    if count < 2:
        return
    if rank:
        time.sleep(_WAIT)
        raise SystemExit(2)
    command = shlex.join(["rlvr-debug", "check", *words])
    raise InputError(f"{several_text(count)} (WORLD_SIZE): run `{command}` without a launcher")


def _run(argv: Sequence[str], log: Path) -> int:
    """Run the program, and pass on to stderr what it says as it says it."""
    package = str(Path(__file__).resolve().parents[3])
    places = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    with (
        guarded(argv, log, environment) as process,
        log.open(encoding="utf-8", errors="replace") as said,
    ):
        status = None
        while True:
            piece = said.read(_PIECE)
            if piece:
                print(piece, end="", file=sys.stderr, flush=True)
            elif status is not None:
                return status
            else:
                status = _ended(process)


def _ended(process: Any) -> int | None:
    from subprocess import TimeoutExpired

    try:
        ended: int = process.wait(0.1)
    except TimeoutExpired:
        return None
    return ended


def _why(script: Path, status: int, log: Path) -> str:
    if status:
        return (
            f"{script}: ended with status {status} before its steps were recorded: {last_line(log)}"
        )
    return f"{script}: ended without a call of GRPOTrainer.train, expected a script that trains with TRL"
