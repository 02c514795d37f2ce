"""Run a user's script under the check, in a process of its own that ends with this one."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.processes import guarded, last_line
from rlvr_debug.recorders.trl.launched import Ranks

__all__ = ["How", "check_script"]

_PROGRAM = "rlvr_debug.recorders.trl.check_script"
_PIECE = 1 << 16


@dataclass(frozen=True)
class How:
    """steps: optimizer steps. rewards: whether reward functions are called again. save: a folder for the record.

    ranks: this process among several. limit: seconds in which one of them has to record something.
    expect: names of algorithms that are meant, by segment.
    """

    steps: int = 3
    rewards: bool = True
    save: Path | None = None
    ranks: Ranks | None = None
    limit: float = 600.0
    expect: Mapping[str, str] = field(default_factory=dict)


def check_script(words: Sequence[str], how: How) -> Mapping[str, Any]:
    """Return what the check says of a script (replay/answer.py). words: its path, or -m and a module, and its arguments.

    What the script says goes to stderr. Raise InputError where it is none, or ends before its steps were recorded; of
    several processes, all but the first raise it in the end.
    """
    script = Path(words[0])
    if words[0] == "-m":
        script = Path(*words[1:2])
    else:
        _need_script(script)
    if how.save is not None and how.save.exists():
        raise InputError(f"{how.save}: exists, expected a new folder for the record")
    with tempfile.TemporaryDirectory() as folder:
        out, told, log = (Path(folder, name) for name in ("answer.json", "told.json", "log"))
        record = None if how.save is None else str(how.save.resolve())
        ranks = how.ranks
        asked = {"out": str(out), "steps": how.steps, "rewards": how.rewards, "record": record}
        asked["expect"] = dict(how.expect)
        if ranks is not None:
            asked["ranks"] = [ranks.rank, ranks.size, str(ranks.folder)]
        write_json(told, asked)
        status = _run([sys.executable, "-m", _PROGRAM, str(told), *words], log, _look(how))
        if out.is_file():
            answer: Mapping[str, Any] = read_json(out)
            return answer
        why = _why(script, status, log)
        if ranks is not None:
            ranks.ended(why)
            ranks.check(time.time(), how.limit)
        raise InputError(why)


def _need_script(script: Path) -> None:
    """Raise InputError for what is no Python program: it would be executed."""
    expected = "expected a script that trains with GRPOTrainer"
    if not script.is_file():
        found = "is a folder" if script.is_dir() else "no such file"
        raise InputError(f"{script}: {found}, {expected}")
    with script.open("rb") as file:
        begins = file.readline(_PIECE)
    if script.suffix != ".py" and not (begins.startswith(b"#!") and b"python" in begins):
        raise InputError(f"{script}: no Python file, {expected}")


def _look(how: How) -> Callable[[], None]:
    """Return what is done while the script runs: the first process sees whether another has ended, the others whether it has."""
    ranks, begun = how.ranks, time.time()
    if ranks is None:
        return lambda: None
    return ranks.need_no_end if ranks.rank else lambda: ranks.check(begun, how.limit)


def _run(argv: Sequence[str], log: Path, look: Callable[[], None]) -> int:
    """Run the program, and pass on to stderr what it says as it says it. look: is called meanwhile."""
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
                look()
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
