"""One kind of error for bad input, and the one line that a user sees of it."""

from __future__ import annotations

import errno
import os
import reprlib
import sys
from collections.abc import Callable
from typing import Any

from rlvr_debug.watchdog import watch_parent

__all__ = ["InputError", "run_main", "short"]

# of the machine and not of the program: a line says all there is to say
_OF_THE_MACHINE = {
    *(
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENOTDIR,
    )
}
_SHOWN = 40  # characters
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxlong = _repr.maxother = _SHOWN


class InputError(Exception):
    """Bad input. The message, always one line, names the place, what was found and expected."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


def short(value: Any) -> str:
    """`value` as an error line shows it: its repr, cut, however long or deep it is."""
    text = _repr.repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def run_main(main: Callable[[], None]) -> None:
    """Run a script's `main`; bad input, or a disk that is full or cannot be written, ends it with one line on
    stderr and exit status 2, Ctrl-C with 130."""
    watch_parent()
    try:
        main()
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # whoever read the output has enough of it, such as `head`; nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        print(f"error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
