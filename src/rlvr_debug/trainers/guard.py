"""Runs a program that cannot outlive whoever started this: `python guard.py program arguments...`

Standard input is a pipe that its starter holds open. When it closes, by whatever end the starter came to,
kill -9 among them, the program and all that it started in its process group are killed. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    program = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)

    def kill() -> None:
        # a group may outlive its first process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)

    def watch() -> None:
        sys.stdin.buffer.read()
        kill()

    threading.Thread(target=watch, daemon=True).start()
    status = program.wait()
    kill()
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
