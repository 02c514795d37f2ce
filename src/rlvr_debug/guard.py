"""Runs a program that cannot outlive whoever started this: `python guard.py program arguments...`

Standard input is a pipe that its starter holds open. When it closes, by whatever end the starter came to,
kill -9 among them, the guard's process group is ended: the program, all that this started in it, and itself.
The group is its own, so that Ctrl-C in a terminal ends the starter first. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_SECONDS = 2.0
_POLL = 0.05
_ending = threading.Event()


def main() -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: None)  # that of end_group is for the others
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch, daemon=True).start()
    status = program.wait()
    while _ending.is_set():
        signal.pause()
    os._exit(status if status >= 0 else 128 - status)


def _watch() -> None:
    sys.stdin.buffer.read()
    _ending.set()
    end_group(os.getpgid(0))


def end_group(group: int) -> None:
    """SIGTERM, for whoever has something to tidy up, and soon SIGKILL to all that are left, the caller included.

    Raises ProcessLookupError where there is no such group.
    """
    os.killpg(group, signal.SIGTERM)
    _wait(group, _SECONDS)
    for process in _others(group):
        # what removes the shared memory of the others, when they are gone, and then ends
        with contextlib.suppress(OSError):  # it ended meanwhile
            if b"multiprocessing.resource_tracker" not in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
    _wait(group, _SECONDS / 2)
    os.killpg(group, signal.SIGKILL)


def _wait(group: int, seconds: float) -> None:
    """Until the caller is alone in it, but no longer."""
    deadline = time.monotonic() + seconds
    while _others(group) and time.monotonic() < deadline:
        time.sleep(_POLL)


def _others(group: int) -> list[Path]:
    """The folders of those that run in it, beside the caller."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # after the name, which may hold anything: state, parent, group
            stat = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(stat[2]) == group and stat[0] != "Z" and int(process.name) != os.getpid():
            found.append(process)
    return found


if __name__ == "__main__":
    main()
