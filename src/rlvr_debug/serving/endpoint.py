"""Where a model server listens: a file that stands before the model is loaded, and the wait until it answers."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

import aiohttp
import psutil

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.processes import last_line

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
        raise InputError(f"{path}: expected the endpoint of a server, found other keys") from None


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
