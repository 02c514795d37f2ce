"""Does what `python WORDS` does, a script or -m and a module, in a fork of one process that has imported what is needed.

    python fork_server.py MODULE...              says in which folder it is to be asked, and forks for whoever asks
    python -SE FOLDER/sitecustomize.py WORDS...  asks; as does `python scripts/NAME.py ...` with FOLDER on PYTHONPATH

Whoever asks lends a fork its folder, variables and streams, and takes it along when it ends. It imports nothing but the
standard library: it runs in any environment.
"""

import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_SOCKET = Path(__file__).with_name("socket")


def _ask(words: list[str]) -> int:
    """Return the exit status of a fork that does what is asked: 1 where the server is gone."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(_SOCKET))
        socket.send_fds(connection, [b"."], [0, 1, 2])
        asked = {"words": words, "folder": os.getcwd(), "variables": dict(os.environ)}
        connection.sendall(f"{json.dumps(asked)}\n".encode())
        return int(connection.recv(64) or 1)


def _serve(modules: list[str]) -> None:
    """Fork for whoever asks until stdin ends, as it does with the process that started this one."""
    for name in modules:
        with suppress(ImportError):  # another release is without it
            importlib.import_module(name)
    gc.freeze()  # a fork looks for cycles in its own objects alone
    running: dict[int, tuple[int, socket.socket]] = {}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        Path(folder, "sitecustomize.py").symlink_to(Path(__file__).resolve())
        server.bind(str(Path(folder, _SOCKET.name)))
        server.listen()
        print(folder, flush=True)
        while sys.stdin not in (ready := select.select([server, sys.stdin, *running], [], [])[0]):
            for ended in running.keys() & {*ready}:
                worker, connection = running.pop(ended)
                os.close(ended)
                status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
                with connection, suppress(OSError):
                    connection.sendall(str(status).encode())
            if server in ready:
                connection, _ = server.accept()
                worker = os.fork() or _work(connection)
                running[os.pidfd_open(worker)] = worker, connection


def _work(connection: socket.socket) -> NoReturn:
    """Do what is asked, in a fork."""
    status = 1
    try:
        os.setsid()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        asked = json.loads(connection.makefile(encoding="utf-8").readline())
        # where the other end closes, the kernel ends this process and what it started
        fcntl.fcntl(connection, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(connection, fcntl.F_SETFL, os.O_ASYNC)
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["variables"])
        _run(asked["words"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(words: list[str]) -> None:
    module = words[0] == "-m"
    sys.argv = words[module:]
    own = os.getcwd() if module else str(Path(words[0]).resolve().parent)
    sys.path[:0] = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if _SOCKET.exists():
        sys.exit(_ask(sys.argv[1:]))
    _serve(sys.argv[1:])
elif __name__ == "sitecustomize" and Path(*sys.orig_argv[1:2]).parent.name == "scripts":
    os._exit(_ask(sys.orig_argv[1:]))
