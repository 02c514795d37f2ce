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
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch, daemon=True).start()
    status = program.wait()
    # here and not in the starter, which a signal may interrupt
    end_group(os.getpgid(0))
    while _ending.is_set():
        signal.pause()
    os._exit(status if status >= 0 else 128 - status)


def _watch() -> None:
    sys.stdin.buffer.read()
    _ending.set()
    end_group(os.getpgid(0))
    os.kill(os.getpid(), signal.SIGKILL)


def end_group(group: int) -> None:
    """SIGTERM to all in it but the caller, for who has something to tidy up, and soon SIGKILL to those left."""
    _signal(group, signal.SIGTERM)
    _wait(group, _SECONDS)
    # not yet what removes the shared memory of the others when they are gone, and then ends
    _signal(group, signal.SIGKILL, b"multiprocessing.resource_tracker")
    _wait(group, _SECONDS / 2)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: signal.Signals, spared: bytes | None = None) -> None:
    """To those with other words in their command line than `spared`."""
    for process in _others(group):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if spared is None or spared not in (process / "cmdline").read_bytes():
                os.kill(int(process.name), number)


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
