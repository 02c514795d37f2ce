"""A model server as a process of ours: started where only we can reach it, with a key of its own, and gone when we are."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from rlvr_debug.errors import InputError
from rlvr_debug.jobs import Sampling, Serving, Trained
from rlvr_debug.processes import guarded, variables_apart
from rlvr_debug.serving.endpoint import (
    Endpoint,
    first_error,
    is_ready,
    wait_until_ready,
    write_endpoint,
)
from rlvr_debug.serving.vllm import vllm_arguments, vllm_variables
from rlvr_debug.venvs import built_python

_HOST = "127.0.0.1"
_MODEL = "policy"
_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Server:
    """How a server is started: model, place, name and VLLM_API_KEY are added; port 0 is a socket in a folder of ours."""

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    port: int
    start_seconds: float


def server_of(asked: Sampling, trained: Trained | None = None) -> Server:
    """Return how vLLM's server is started, for the policies that it follows, if any."""
    settings, own = asked.server, asked.server["vllm"]
    argv = (str(built_python(own["environment"])), *vllm_arguments(own, trained))
    variables = {**variables_apart(), **vllm_variables(own, trained)}
    return Server(argv, variables, settings["port"], settings["start_seconds"])


@contextmanager
def served(
    server: Server, model: Path, log: Path
) -> Iterator[tuple[Endpoint, subprocess.Popen[bytes]]]:
    """Yield its endpoint at once, while it still loads, and its process, which ends with the context."""
    key = secrets.token_urlsafe(32)
    argv = [*server.argv, "--model", str(model), "--served-model-name", _MODEL]
    # nobody else can enter it; the sockets between vLLM's processes outlive those that are killed
    with TemporaryDirectory() as folder:
        variables = {**server.variables, "VLLM_API_KEY": key, "VLLM_RPC_BASE_PATH": folder}
        words, url = _place(server.port, folder)
        with guarded([*argv, *words], log, variables) as process:
            yield Endpoint(url, key, _MODEL, process.pid, str(log), server.start_seconds), process


@contextmanager
def started(server: Server, model: Path, folder: Path) -> Iterator[Callable[[], Endpoint]]:
    """Yield what starts the server, in place of the one before it, and returns when it is ready; logs go to `folder`."""
    with ExitStack() as running:

        def start() -> Endpoint:
            running.close()
            log = folder / f"server-{len(list(folder.glob('server-*.log')))}.log"
            endpoint, _ = running.enter_context(served(server, model, log))
            wait_until_ready(endpoint)
            return endpoint

        yield start


def serve(job: Serving, log: Path, out: Path) -> None:
    """Be the job whose server the jobs of a study share, until SIGTERM, which ends it with status 0.

    A server that was ready and ends is started once more; `out` is written before the model is loaded.
    """

    def end(*_: object) -> NoReturn:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    server = server_of(job.sampling, job.trained)
    for last in (False, True):
        with served(server, job.base_model, log) as (endpoint, process):
            write_endpoint(out, endpoint)
            was_ready = False
            while process.poll() is None:
                if not was_ready and (was_ready := is_ready(endpoint)):
                    print("the server is ready", file=sys.stderr, flush=True)
                time.sleep(_POLL)
            status, said = process.wait(), first_error(log)
            ended = f"the server ended with status {status}: {said} (all of it: {log})"
        if last or not was_ready:
            raise InputError(ended)
        print(f"{ended}; it is started once more", file=sys.stderr, flush=True)
        log.replace(log.with_suffix(".ended.log"))


def _place(port: int, folder: str) -> tuple[list[str], str]:
    """Return where to listen, as words of a command line and as a URL: a socket, since vLLM asks for its key on some paths only."""
    if not port:
        return ["--uds", f"{folder}/socket"], f"unix:{folder}/socket"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise InputError(
                f"server.port: {port} of {_HOST} cannot be had ({error.strerror}), expected a free "
                "port, or 0 for none"
            ) from None
    return ["--host", _HOST, "--port", str(port)], f"http://{_HOST}:{port}"
