"""Git, where a result is compared or kept by what is committed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rlvr_debug.errors import InputError

__all__ = ["git"]


def git(*arguments: str, folder: Path) -> str:
    """What this git command writes. Raises InputError with the last line of its error."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
    except FileNotFoundError:
        raise InputError("git: command not found, expected git to be installed") from None
    except ValueError as error:  # an argument that holds NUL, or bytes that are not UTF-8
        raise InputError(f"git {arguments[0]}: {error}, expected text") from None
    if done.returncode:
        said = (done.stderr.strip() or "failed").splitlines()[-1]
        raise InputError(f"git {arguments[0]}: {said}")
    return done.stdout
