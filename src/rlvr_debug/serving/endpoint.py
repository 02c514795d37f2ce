"""Where a model server listens: a file that stands before the model is loaded, and the wait until it answers."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.guarded import last_line

__all__ = ["Endpoint", "read_endpoint", "wait_until_ready", "write_endpoint"]

_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Endpoint:
    """url: on loopback, without a path; key: what it asks for; model: its name there; pid: of the process
    that ends when the server does; log: what it says; start_seconds: the longest that loading may take."""

    url: str
    key: str
    model: str
    pid: int
    log: str
    start_seconds: float


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
    while not _healthy(endpoint.url):
        if not _alive(endpoint.pid):
            said = last_line(Path(endpoint.log))
            raise InputError(f"{endpoint.url}: the server ended before it was ready: {said}")
        if time.monotonic() > deadline:
            raise InputError(
                f"{endpoint.url}: the server was not ready within {endpoint.start_seconds:g} s "
                "(server.start_seconds)"
            )
        time.sleep(_POLL)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
