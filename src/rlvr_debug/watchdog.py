"""Ends a job when the Snakemake that started it is gone, so that nothing writes on after a kill -9."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["PARENT", "watch_parent"]

PARENT = "RLVR_DEBUG_PARENT"  # process id, set by workflow/rules/common.smk
_SECONDS = 1.0


def watch_parent() -> None:
    """Start watching the process that the environment names, if it names one."""
    if parent := os.environ.get(PARENT):
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            return  # the id belongs to somebody else's process: nothing can be told
        time.sleep(_SECONDS)
