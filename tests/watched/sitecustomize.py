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
    code = str(path).endswith((".py", ".pyc"))
    if "/src/rlvr_debug/" in str(path) and path not in _seen and (code == (event == "exec")):
        _seen.add(path)
        with open(os.environ["WATCHED"], "a") as file:
            file.write(f"{path}\n")


if "WATCHED" in os.environ:
    sys.addaudithook(_watch)
