"""What all workers of one run of the tests share: the first who needs it makes it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["once"]


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
