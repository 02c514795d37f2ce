"""Programs of ours, run in this process: to start Python and import takes longer than most of what they do."""

import io
import runpy
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from rlvr_debug.checkout import ROOT


def called(main: Callable[[], object], *words: str, root: Path = ROOT) -> CompletedProcess[str]:
    """Return how a program's `main` ends and what it says, where the words of its command are these."""
    said, wrong = io.StringIO(), io.StringIO()
    status, before = 0, sys.argv
    try:
        sys.argv = list(words)
        with chdir(root), redirect_stdout(said), redirect_stderr(wrong):
            main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv = before
    return CompletedProcess(words, status, said.getvalue(), wrong.getvalue())


def script(*words: str) -> CompletedProcess[str]:
    """Return how a script ends and what it says. words: its path in the project, and what follows."""
    path = str(ROOT / words[0])
    return called(lambda: runpy.run_path(path, run_name="__main__"), *words)
