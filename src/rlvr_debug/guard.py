"""Runs a program that cannot outlive whoever started this: `python guard.py program arguments...`

Standard input is a pipe that its starter holds open. When it closes, by whatever end the starter came to,
kill -9 among them, the guard's process group is killed: itself, the program, and all that this started in it.
The group is its own, so that Ctrl-C in a terminal ends the starter first. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    os.setsid()
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch, daemon=True).start()
    status = program.wait()
    os._exit(status if status >= 0 else 128 - status)


def _watch() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
