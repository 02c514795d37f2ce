"""Starting a program that ends with whoever started it, by whatever end: guard.py from the outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlvr_debug import guard
from rlvr_debug.errors import InputError

__all__ = ["guarded", "last_line", "without_our_packages"]


@contextmanager
def guarded(
    argv: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The guard's process, whose status is the program's. What the program says goes to `log`.

    When the context is left, the program and all that it started in its group are ended, within seconds.
    """
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                [sys.executable, guard.__file__, *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        except OSError as error:
            raise InputError(f"{argv[0]}: {error.strerror}, expected a program") from None
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()  # what the guard ends it by
            process.wait()
            # its group outlives a guard that was killed itself
            guard.end_group(process.pid)


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def without_our_packages() -> dict[str, str]:
    """The environment variables for a program that has its own: PYTHONPATH would let our packages in."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
