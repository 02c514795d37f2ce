"""Git, where a result is compared or kept by what is committed."""

from __future__ import annotations

from pathlib import Path

from rlvr_debug.errors import InputError
from rlvr_debug.processes import output_of


def git(*arguments: str, folder: Path) -> str:
    """What this git command writes. Raises InputError with the last line of its error."""
    try:
        return output_of(["git", *arguments], f"git {arguments[0]}", folder)
    except FileNotFoundError:
        raise InputError("git: command not found, expected git to be installed") from None
    except ValueError as error:  # an argument that holds NUL, or bytes that are not UTF-8
        raise InputError(f"git {arguments[0]}: {error}, expected text") from None
