"""What the processes of a study inherit from Snakemake."""

from __future__ import annotations

import os
import sys

from rlvr_debug.watchdog import PARENT

__all__ = ["set_up_jobs"]


def set_up_jobs() -> None:
    """Jobs run in Snakemake's own environment, activated or not, with one thread each, and end with it."""
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ[PARENT] = str(os.getpid())
