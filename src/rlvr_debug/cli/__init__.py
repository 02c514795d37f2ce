"""The command line: `rlvr-debug`, a thin cover of library calls. A command is a function of the files beside this."""

from __future__ import annotations

from importlib import import_module

from rlvr_debug.cli.app import app
from rlvr_debug.processes import run_main

__all__ = ["app", "main"]

# in the order in which --help lists their commands
for _file in ("running", "checking", "looking", "changing"):
    import_module(f"rlvr_debug.cli.{_file}")


def main() -> None:
    """Run the command that the words of this process name."""
    run_main(_main)


def _main() -> None:
    try:
        app()
    except SystemExit as end:
        # Typer's own way to end: of Ctrl-C it says nothing
        if end.code == 130:
            raise KeyboardInterrupt from None
        if end.code:
            raise
