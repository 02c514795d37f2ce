"""What tests share: what the first worker who needs it makes, how a program ends, and to wait for something."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of that name, which `make` has filled; nobody changes it afterwards."""
    base = factory.getbasetemp()
    # a worker's own stands in the one of the run
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, ready = base / name, base / f"{name}.ready"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place)
            ready.touch()
    return place


@cache
def job_forks() -> Any:
    """Return forks whose folder is for PYTHONPATH: a study's jobs are forks then, as imports take 4 s of a job's 5."""
    from benchmarks.check.forks import LIBRARIES, Forks

    more = ("torch.distributed.tensor", "pandas", "scipy.special", "altair", "jinja2", "bm25s")
    return Forks(sys.executable, (*LIBRARIES, *more))


def free_port() -> int:
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def wait(found: Callable[[], Any], seconds: float = 60) -> Any:
    """Return what comes to be found before so many seconds are over."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def ran(
    command: Sequence[object],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    check: bool = False,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Return how a program ends and what it says."""
    words = [*map(str, command)]
    return subprocess.run(
        words,
        cwd=cwd,
        env=env,
        input=input,
        check=check,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
