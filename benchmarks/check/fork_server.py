"""Runs Python's command lines in forks of one process that has imported what they need.

    python fork_server.py serve SOCKET MODULE...    imports the modules, says `ready` and forks for whoever asks
    python fork_server.py ask SOCKET WORDS...       does what `python WORDS` does: a script, or -m and a module, with arguments

Whoever asks lends its folder, its environment variables and its three streams, and a fork ends when they do. It imports
nothing but the standard library: it runs in any environment.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_ONE = b"."


# --- whoever asks


def request(
    place: str,
    words: Sequence[str],
    folder: str,
    variables: Mapping[str, str],
    streams: Sequence[int],
) -> socket.socket:
    """Begin a program, and return the connection that its exit status will come over; the program ends where it is closed."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    socket.send_fds(connection, [_ONE], streams)
    asked = {"words": [*words], "folder": folder, "variables": dict(variables)}
    connection.sendall(f"{json.dumps(asked)}\n".encode())
    return connection


def answer(connection: socket.socket) -> int:
    """Wait for the exit status: 1 where the server is gone."""
    with connection:
        return int(connection.recv(64) or 1)


# --- the server


def _serve(place: str, modules: Sequence[str]) -> None:
    """Fork for whoever asks until stdin ends, as it does with the process that started this one."""
    for name in modules:
        with suppress(ImportError):  # another release is without it
            importlib.import_module(name)
    gc.freeze()  # a fork looks for cycles in its own objects alone
    server = socket.socket(socket.AF_UNIX)
    server.bind(place)
    server.listen()
    print("ready", flush=True)
    while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        with connection:
            if not os.fork():
                server.close()
                _answer(connection)
        _reap()
    _reap()
    os._exit(0)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> None:
    """Run what is asked in a fork, and say its status."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile(encoding="utf-8") as lines:
        asked = json.loads(lines.readline())
    worker = os.fork()
    if not worker:
        connection.close()
        _work(asked, streams)
    threading.Thread(target=_end_with, args=(connection, worker), daemon=True).start()
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(str(status).encode())
    os._exit(0)


def _end_with(connection: socket.socket, worker: int) -> None:
    """End the worker, and what it started, once nobody waits for it."""
    connection.recv(1)
    with suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)


def _work(asked: Mapping[str, Any], streams: Sequence[int]) -> None:
    status = 1
    try:
        os.setsid()
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["variables"])
        status = _ran(asked["words"], sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ran(words: list[str], errors: IO[str]) -> int:
    module = words[0] == "-m"
    sys.argv = words[module:]
    own = os.getcwd() if module else str(Path(words[0]).resolve().parent)
    places = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [own, *(place for place in places if place not in sys.path)]
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=errors)
        return 1
    except BaseException:
        traceback.print_exc(file=errors)
        return 1
    return 0


def main() -> None:
    what, place, *words = sys.argv[1:]
    if what == "serve":
        _serve(place, words)
    sys.exit(answer(request(place, words, os.getcwd(), os.environ, (0, 1, 2))))


if __name__ == "__main__":
    main()
