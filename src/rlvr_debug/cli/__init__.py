"""The command line: `rlvr-debug`, a thin cover of library calls. A command is a function of the files beside this."""

import os
import sys
from importlib import import_module
from pathlib import Path

from rlvr_debug.cli.shared import app
from rlvr_debug.processes import run_main

__all__ = ["app", "main"]

_SOURCE = Path(__file__).resolve().parents[2]

for _file in ("running", "checking", "looking", "changing"):
    import_module(f"rlvr_debug.cli.{_file}")
# what a user needs, which --help lists before the rest
_FIRST = ("diagnose", "check", "plan", "run", "status", "report")
for _name in reversed(_FIRST):
    app.registered_commands.sort(key=lambda each: getattr(each.callback, "__name__", "") != _name)


def main() -> None:
    """Run the command that the words of this process name, by the code of the checkout that it is started in."""
    here = Path.cwd()
    sources = (folder / "src" for folder in (here, *here.parents) if _is_checkout(folder))
    source = next(sources, _SOURCE)
    if source.resolve() != _SOURCE:
        _run_from(source)
    run_main(_main)


def _is_checkout(folder: Path) -> bool:
    return (folder / "params.yaml").is_file() and (folder / "src" / "rlvr_debug").is_dir()


def _run_from(source: Path) -> None:
    """Go on as the same command of another checkout: this package may have been installed from elsewhere."""
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    words = [sys.executable, "-m", "rlvr_debug.cli", *sys.argv[1:]]
    os.execve(words[0], words, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)})


def _main() -> None:
    try:
        app()
    except SystemExit as end:
        # Typer's own way to end: of Ctrl-C it says nothing
        if end.code == 130:
            raise KeyboardInterrupt from None
        if end.code:
            raise
