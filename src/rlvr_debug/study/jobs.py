"""What Snakemake is told of the code that jobs run, and what they inherit from it."""

from __future__ import annotations

import atexit
import functools
import gc
import hashlib
import json
import os
import re
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.files import digest_of
from rlvr_debug.processes import PARENT

__all__ = ["EVALUATION_CODE", "ROLLOUT_CODE", "code_digest", "pin_kernels", "set_up_jobs", "told"]

# the library's code that rollouts depend on, and held-out evaluations
ROLLOUT_CODE = (
    "data",
    "environments",
    "models/adapters.py",
    "models/architectures.py",
    "models/base_model.py",
    "models/places.py",
    "sampling",
)
EVALUATION_CODE = (*ROLLOUT_CODE, "evaluation.py", "serving")


def set_up_jobs() -> None:
    """Jobs run in Snakemake's own environment, activated or not, on the library that this file is of,
    with one thread each, and end with it."""
    _first("PATH", os.path.dirname(sys.executable))
    _first("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    os.environ["OMP_NUM_THREADS"] = "1"
    pin_kernels()
    os.environ[PARENT] = str(os.getpid())
    # Snakemake's objects stay to the end: to look for rubbish among them, as it goes and once more when all is
    # done, is a tenth of a large dry run
    gc.set_threshold(1_000_000, 50, 50)
    atexit.register(gc.freeze)


def pin_kernels(cpus: Path = Path("/proc/cpuinfo")) -> None:
    """Have torch take its kernels for AVX2 where the processor has it: on AMD, AVX-512 gives the bytes of AVX2 then.

    What somebody has set stays. docs/limits.md has what this pins and what not, on Intel above all.
    """
    if cpus.is_file() and re.search(r"^flags\s*:.*\bavx2\b", cpus.read_text(), re.M):
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")


@functools.cache
def code_digest(place: Path) -> str:
    """Return 12 digits of the name and content of a file, or of all Python in a folder and in those below it.

    Raises FileNotFoundError where there are none.
    """
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not files:
        raise FileNotFoundError(f"{place}: no Python files")
    return digest_of(files)


def told(*values: Any) -> str:
    """Return 12 digits of all that a job is told: it runs again where they are others.

    values: data classes, paths, and what JSON can hold. The order of keys does not count.
    """
    text = json.dumps(values, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    # its fields as they are, of which json asks for what it cannot hold in turn: dataclasses.asdict copies all of it
    return vars(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _first(variable: str, folder: str) -> None:
    """Search there before anywhere else."""
    others = filter(None, [os.environ.get(variable)])
    os.environ[variable] = os.pathsep.join([folder, *others])
