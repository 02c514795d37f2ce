"""The processes that a launcher started: torchrun, accelerate or deepspeed. They end together, and the first one answers.

Each has its script run under the check as one process has, or checks a trainer that is there. What they tell each
other lies in a folder that the launcher's own process names:

    beat-R      how many calls of rank R were watched, and which was the last
    part-R/     what rank R recorded
    ended-R     why the script of rank R ended before that, and when
    said        the exit status or the answer of all, when the first has said what there is to say
    left-R      rank R has read it
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError

__all__ = ["Beats", "Ranks", "as_one", "launched", "launcher_words", "take_launcher_words"]

_WORDS = "RLVR_DEBUG_LAUNCHER_WORDS"
_POLL = 0.1
_BEGIN = 600.0  # seconds for imports and for loading a model
_LEAVE = 20.0  # seconds for the others to read how it ended


@dataclass(frozen=True)
class Ranks:
    """This process among those of its launcher. folder: where they meet."""

    rank: int
    size: int
    folder: Path

    def part(self, rank: int) -> Path:
        """Return the folder of what a rank recorded."""
        return self.folder / f"part-{rank}"

    def beat(self, count: int, what: str) -> None:
        """Say that this rank goes on."""
        self._write(f"beat-{self.rank}", {"count": count, "what": what})

    def ended(self, why: str) -> None:
        """Say why this rank's script ended before its steps were recorded, unless that was said."""
        if not (self.folder / f"ended-{self.rank}").exists() and not self.part(self.rank).exists():
            self._write(f"ended-{self.rank}", {"at": time.time(), "why": why})

    def _write(self, name: str, told: object) -> None:
        part = self.folder / f".{name}.{os.getpid()}"
        part.write_text(json.dumps(told), encoding="utf-8")
        os.replace(part, self.folder / name)

    def _read(self, name: str) -> dict[str, object]:
        with suppress(OSError, ValueError):
            found: dict[str, object] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            return found
        return {}

    def check(self, since: float, limit: float) -> None:
        """Raise InputError, one line that names a rank, where one has ended early or nothing was recorded for so long.

        since: when the scripts began. The first that ends takes the others with it: it alone is named.
        """
        ended = {rank: told for rank in range(self.size) if (told := self._read(f"ended-{rank}"))}
        if ended:
            rank = min(ended, key=lambda each: float(str(ended[each]["at"])))
            raise InputError(f"rank {rank}: {ended[rank]['why']}")
        behind = [rank for rank in range(self.size) if not self.part(rank).exists()]
        beats = [self.folder / f"beat-{rank}" for rank in range(self.size)]
        last = max([since, *(each.stat().st_mtime for each in beats if each.exists())])
        begun = any(each.exists() for each in beats)
        if behind and time.time() - last > (limit if begun else max(limit, _BEGIN)):
            raise InputError(f"{self._behind(behind)}; nothing was recorded for {limit:g} s")

    def _behind(self, ranks: list[int]) -> str:
        """Return which of these ranks is behind the others, and where it was seen last."""
        told = {rank: self._read(f"beat-{rank}") for rank in range(self.size)}
        counts = {rank: int(str(each.get("count", 0))) for rank, each in told.items()}
        slowest, most = min(ranks, key=lambda rank: counts[rank]), max(counts.values())
        if counts[slowest] == most:
            return f"all ranks wait after {most} recorded calls, the last of {told[slowest].get('what')}"
        where = told[slowest].get("what", "nothing")
        return (
            f"rank {slowest}: waits or hangs after {counts[slowest]} recorded calls, the last of {where}, where another rank "
            f"has made {most}"
        )

    def need_no_end(self) -> None:
        """Raise InputError where the first rank has said how all end."""
        if (self.folder / "said").exists():
            raise InputError("another process ended first")

    def wait(self) -> Any:
        """Return what the first rank has said when it has; None where that one is gone."""
        file, main = self.folder / "said", self.folder / "main"
        begun = time.monotonic()
        while not file.exists():
            time.sleep(_POLL)
            late = time.monotonic() - begun > _BEGIN
            if not _alive(int(main.read_text() or 0)) if main.exists() else late:
                return None
        told = json.loads(file.read_text(encoding="utf-8"))
        self._write(f"left-{self.rank}", True)
        return told

    def conclude(self, told: object) -> None:
        """Tell the others how it ended, and leave when they have read it."""
        self._write("said", told)
        deadline = time.monotonic() + _LEAVE
        others = [self.folder / f"left-{rank}" for rank in range(1, self.size)]
        while time.monotonic() < deadline and not all(each.exists() for each in others):
            time.sleep(_POLL)
        self.leave()

    def leave(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)


def take_launcher_words(words: list[str]) -> None:
    """Take away what DeepSpeed's launcher puts before a module's own arguments; the script gets it."""
    while words and words[0].startswith("--local_rank"):
        os.environ[_WORDS] = words.pop(0)


def launcher_words() -> list[str]:
    """Return what a launcher gives to the script that it starts."""
    return [*filter(None, [os.environ.get(_WORDS)])]


class Beats:
    """Tells of each watched call of this rank."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._count = ranks, 0

    def __call__(self, what: str) -> None:
        self._count += 1
        with suppress(OSError):  # the folder is gone where another rank has ended
            self._ranks.beat(self._count, what)


def launched(environment: Mapping[str, str] = os.environ, meeting: str = "") -> Ranks | None:
    """Return this process' place where a launcher started several. Raise InputError where they are of several machines.

    meeting: what they meet for, where they do so several times.
    """
    numbers = (environment.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    rank, size = (int(each) if each.isdecimal() else 0 for each in numbers)
    if size < 2:
        return None
    here = environment.get("LOCAL_WORLD_SIZE", str(size))
    if here != str(size):
        raise InputError(
            f"{size} processes on several machines, {here} of them here: the check records those of one machine"
        )
    parent = os.getppid()
    words = (environment.get("MASTER_PORT", ""), environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    told = ["rlvr-debug", str(os.getuid()), str(parent), _begun(parent), *words, meeting]
    name = "-".join(filter(None, told))
    folder = Path(tempfile.gettempdir(), name)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InputError(f"{folder}: belongs to another user, expected a folder of this one's")
    if not rank:
        (folder / "main").write_text(str(os.getpid()), encoding="utf-8")
    return Ranks(rank, size, folder)


def _begun(process: int) -> str:
    """Return when a process began: its number may have been another's before."""
    with suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[19]
    return "0"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def as_one(ranks: Ranks | None) -> Iterator[None]:
    """Have all ranks end with the status of the first, which alone says why."""
    if ranks is None:
        yield
        return
    if ranks.rank:
        with suppress(Exception):
            yield
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        status = ranks.wait()
        raise SystemExit(2 if status is None else status)
    status = 2
    try:
        yield
        status = 0
    except BaseException as end:
        status = int(getattr(end, "exit_code", status))  # typer.Exit
        if isinstance(end, InputError):  # before the others end, and the launcher this one
            print(f"error: {end}", file=sys.stderr, flush=True)
            raise SystemExit(status) from None
        raise
    finally:
        # what a launcher ends those with that are last
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ranks.conclude(status)
