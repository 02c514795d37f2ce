"""The processes that a launcher started: torchrun, accelerate or deepspeed. They end together, and the first one answers.

Each has its script run under the check as one process has, or checks a trainer that is there. What they tell each
other lies in a folder that the launcher's own process names:

    beat-R      how many calls of rank R were watched, and which was the last
    part-R/     what rank R recorded
    ended-R     why the script of rank R ended before that, and when
    said        the exit status or the answer of all, when the first has said what there is to say
    left-R      rank R has read it
    NAME-R      what rank R tells all others
    stack-R     where rank R was, each quarter of the seconds in which it has to record something
"""

import faulthandler
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError

_WORDS = "RLVR_DEBUG_LAUNCHER_WORDS"
_POLL = 0.1
_BEGIN = 600.0  # seconds for imports and for loading a model
_LEAVE = 20.0  # seconds for the others to read how it ended
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)
# parts of the paths of all code that is not the user's
LIBRARIES = (
    "site-packages",
    "<frozen",
    str(Path(__file__).parents[2]),
    os.path.dirname(os.__file__),
)


@dataclass(frozen=True)
class Ranks:
    """This process among those of its launcher. folder: where they meet."""

    rank: int
    size: int
    folder: Path

    def part(self, rank: int) -> Path:
        return self.folder / f"part-{rank}"

    def ended(self, why: str) -> None:
        """Say why this rank's script ended before its steps were recorded, unless that was said."""
        if not (self.folder / f"ended-{self.rank}").exists() and not self.part(self.rank).exists():
            self.write(f"ended-{self.rank}", {"at": time.time(), "why": why})

    def write(self, name: str, told: object) -> None:
        part = self.folder / f".{name}.{os.getpid()}"
        part.write_text(json.dumps(told), encoding="utf-8")
        os.replace(part, self.folder / name)

    def _read(self, name: str) -> dict[str, object]:
        with suppress(OSError, ValueError):
            found: dict[str, object] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            return found
        return {}

    def told(self, name: str, value: object, limit: float = _BEGIN) -> list[Any]:
        """Tell all ranks a value, and return what each tells; nothing where one has ended, or tells nothing in so many seconds.

        It needs none of torch's collectives, of which the training's own would be waiting.
        """
        self.write(f"{name}-{self.rank}", [value])
        files = [self.folder / f"{name}-{rank}" for rank in range(self.size)]
        ends = [self.folder / f"ended-{rank}" for rank in range(self.size)]
        deadline = time.monotonic() + limit
        while not all(each.exists() for each in files):
            if any(each.exists() for each in ends) or time.monotonic() > deadline:
                return []
            time.sleep(_POLL)
        return [json.loads(each.read_text(encoding="utf-8"))[0] for each in files]

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
            raise InputError(f"{self._behind(behind)}; no call was recorded for {limit:g} s")

    def _behind(self, ranks: list[int]) -> str:
        """Return which of these ranks is behind the others, and where it was seen last."""
        told = [self._read(f"beat-{rank}") for rank in range(self.size)]
        counts = [int(str(each.get("count", 0))) for each in told]
        slowest, most = min(ranks, key=lambda rank: counts[rank]), max(counts)
        places = [self._place(rank) for rank in range(self.size)]
        # of ranks that have begun the same call, the one that waits for no other
        hanging = [rank for rank in ranks if places[rank][0] and not places[rank][1]]
        if even := counts[slowest] == most:
            if len(hanging) != 1:
                lines = [f"rank {n} at {line}" for n, (line, _) in enumerate(places) if line]
                after = f"after {most} recorded calls, the last of {told[slowest].get('what')}"
                return ": ".join(filter(None, [f"all ranks wait {after}", ", ".join(lines)]))
            slowest = hanging[0]
        at = f" at {places[slowest][0]}," if places[slowest][0] else ""
        where = told[slowest].get("what", "nothing")
        said = f"rank {slowest}: waits or hangs{at} after {counts[slowest]} recorded calls, the last of {where}"
        return f"{said}, where {'the others wait' if even else f'another rank has made {most}'}"

    def watch(self, limit: float) -> None:
        """Have this process write where it is as long as it runs, though it be within a call that does not return."""
        file = (self.folder / f"stack-{self.rank}").open("w")  # open as long as the process
        faulthandler.dump_traceback_later(limit / 4, repeat=True, file=file)

    def _place(self, rank: int) -> tuple[str, bool]:
        """Return the line where a rank was last, the user's if one is in the stack that it wrote, and whether torch waits there."""
        text = ""
        with suppress(OSError):
            text = (self.folder / f"stack-{rank}").read_text(errors="replace")
        # of all threads the main one comes last
        frames = _FRAME.findall(text.rpartition("(most recent call first):")[2])
        if not frames:
            return "", False
        own = [frame for frame in frames if not any(each in frame[0] for each in LIBRARIES)]
        file, line = (own or frames)[0]
        return f"{file}:{line}", "/torch/" in frames[0][0] or frames[0][0] == __file__

    def wait(self) -> Any:
        """Return what the first rank has said when it has; None where that one is gone."""
        file, main = self.folder / "said", self.folder / "main"
        begun = time.monotonic()
        while not file.exists():
            time.sleep(_POLL)
            try:
                if main.exists():
                    os.kill(int(main.read_text() or 0), 0)
                elif time.monotonic() - begun > _BEGIN:
                    return None
            except ProcessLookupError:
                return None
        told = json.loads(file.read_text(encoding="utf-8"))
        self.write(f"left-{self.rank}", True)
        return told

    def conclude(self, told: object) -> None:
        """Tell the others how it ended, and leave when they have read it."""
        self.write("said", told)
        deadline = time.monotonic() + _LEAVE
        others = [self.folder / f"left-{rank}" for rank in range(1, self.size)]
        while time.monotonic() < deadline and not all(each.exists() for each in others):
            time.sleep(_POLL)
        self.leave()

    def leave(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def take_launcher_words(words: list[str]) -> None:
    """Take away what DeepSpeed's launcher puts before a module's own arguments; the script gets it."""
    while words and words[0].startswith("--local_rank"):
        os.environ[_WORDS] = words.pop(0)


def launcher_words() -> list[str]:
    return [*filter(None, [os.environ.get(_WORDS)])]


def beats(ranks: Ranks) -> Callable[[str], None]:
    """Return what tells the other ranks of each watched call of this one."""
    numbers = itertools.count(1)

    def beat(what: str) -> None:
        with suppress(OSError):  # the folder is gone where another rank has ended
            ranks.write(f"beat-{ranks.rank}", {"count": next(numbers), "what": what})

    return beat


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
        what = "the check records those of one machine"
        raise InputError(f"{size} processes on several machines, only {here} on this one: {what}")
    parent = os.getppid()
    words = (environment.get("MASTER_PORT", ""), environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    told = ["rlvr-debug", str(os.getuid()), str(parent), _begun(parent), *words, meeting]
    name = "-".join(filter(None, told))
    folder = Path(tempfile.gettempdir(), name)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InputError(f"{folder}: belongs to another user; set TMPDIR to a folder of your own")
    if not rank:
        (folder / "main").write_text(str(os.getpid()), encoding="utf-8")
    return Ranks(rank, size, folder)


def _begun(process: int) -> str:
    """Return when a process began: its number may have been another's before."""
    with suppress(OSError):
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[19]
    return "0"


@contextmanager
def as_one(ranks: Ranks | None) -> Iterator[None]:
    """End all ranks with the first one's status; only that one says why."""
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
