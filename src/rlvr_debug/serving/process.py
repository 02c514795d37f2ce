"""A model server as a process of ours: started where only we can reach it, with a key of its own, and gone when we are."""

import asyncio
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import aiohttp
import psutil

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.jobs import Sampling, Serving, Trained
from rlvr_debug.processes import guarded, last_line, variables_apart
from rlvr_debug.serving.vllm import vllm_arguments, vllm_variables
from rlvr_debug.venvs import built_python

_POLL = 0.2  # seconds
_HEALTH_SECONDS = 5.0
_CONCURRENT = 256
_SOCKET = "unix:"
# the last line of a traceback, which vLLM's processes put their names before
_ERROR = re.compile(r"(?:\(.*?\) ERROR .*?\] )?([\w.]*(?:Error|Exception): .*)")


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens (a port of 127.0.0.1, or unix: and a file), its key, model, process, log, and patience."""

    url: str
    key: str
    model: str
    pid: int
    log: str
    start_seconds: float

    def session(self, seconds: float) -> aiohttp.ClientSession:
        """For requests of paths, with the key. seconds: the longest that one may take."""
        connector: aiohttp.BaseConnector
        if self.url.startswith(_SOCKET):
            base = "http://localhost"
            file = self.url.removeprefix(_SOCKET)
            connector = aiohttp.UnixConnector(file, limit=_CONCURRENT)
        else:
            base, connector = self.url, aiohttp.TCPConnector(limit=_CONCURRENT)
        return aiohttp.ClientSession(
            base,
            headers={"Authorization": f"Bearer {self.key}"},
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=seconds),
        )


def write_endpoint(path: Path, endpoint: Endpoint) -> None:
    # the key is for this user alone
    before = os.umask(0o077)
    try:
        write_json(path, asdict(endpoint))
    finally:
        os.umask(before)


def read_endpoint(path: Path) -> Endpoint:
    """Raises InputError for a file that is missing or is not one of write_endpoint's."""
    found = read_json(path)
    try:
        return Endpoint(**found)
    except TypeError:
        raise InputError(f"{path}: not a server's endpoint: it has other keys") from None


def wait_until_ready(endpoint: Endpoint) -> None:
    """Return when /health answers 200. Raises InputError when the server's process is gone, or takes too long."""
    deadline = time.monotonic() + endpoint.start_seconds
    while not is_ready(endpoint):
        if not _alive(endpoint.pid):
            said = first_error(Path(endpoint.log))
            raise InputError(f"{endpoint.url}: the server ended before it was ready: {said}")
        if time.monotonic() > deadline:
            raise InputError(
                f"{endpoint.url}: the server was not ready within {endpoint.start_seconds:g} s "
                "(server.start_seconds)"
            )
        time.sleep(_POLL)


def first_error(log: Path) -> str:
    """What a server said went wrong, before all that then went wrong because of it; else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines):
        if found := _ERROR.match(line):
            more = takewhile(lambda below: below.startswith("  "), lines[number + 1 :])
            return " ".join([found[1], *map(str.strip, more)])[:300]
    return last_line(log)


def is_ready(endpoint: Endpoint) -> bool:
    """Whether /health answers 200."""

    async def status() -> int:
        async with endpoint.session(_HEALTH_SECONDS) as session, session.get("/health") as answer:
            return answer.status

    try:
        return asyncio.run(status()) == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


_HOST = "127.0.0.1"
_MODEL = "policy"


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
            ended = f"the server ended with status {status}: {said} (full log: {log})"
        if last or not was_ready:
            raise InputError(ended)
        print(f"{ended}; starting it once more", file=sys.stderr, flush=True)
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
                f"server.port: cannot bind port {port} of {_HOST} ({error.strerror}); choose a free "
                "port, or 0 for a Unix socket"
            ) from None
    return ["--host", _HOST, "--port", str(port)], f"http://{_HOST}:{port}"
