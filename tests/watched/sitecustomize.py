"""First in a process' path: each module of the package that runs there and each file of it that is opened, to $WATCHED."""

import os
import sys
from typing import Any

_seen: set[str] = set()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "exec":
        path = getattr(arguments[0], "co_filename", "")
    elif event == "open" and isinstance(arguments[0], str | os.PathLike):
        path = os.fspath(arguments[0])
    else:
        return
    if "/src/rlvr_debug/" not in str(path) or "__pycache__" in str(path) or path in _seen:
        return  # bytecode is read, and written to a temporary name, beside the code that it is of
    if str(path).endswith(".py") == (event == "exec"):
        _seen.add(path)
        with open(os.environ["WATCHED"], "a") as file:
            file.write(f"{path}\n")


if "WATCHED" in os.environ:
    sys.addaudithook(_watch)
