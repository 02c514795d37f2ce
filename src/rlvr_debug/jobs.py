"""What the processes of a study inherit from Snakemake."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rlvr_debug.watchdog import PARENT

__all__ = ["set_up_jobs"]


def set_up_jobs() -> None:
    """Jobs run in Snakemake's own environment, activated or not, on the library that this file is of,
    with one thread each, and end with it."""
    _first("PATH", os.path.dirname(sys.executable))
    _first("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ[PARENT] = str(os.getpid())


def _first(variable: str, folder: str) -> None:
    """Search there before anywhere else."""
    others = filter(None, [os.environ.get(variable)])
    os.environ[variable] = os.pathsep.join([folder, *others])
