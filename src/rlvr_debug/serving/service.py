"""The server that the jobs of a study share, as a job itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rlvr_debug.errors import InputError
from rlvr_debug.serving.endpoint import Endpoint, is_ready, write_endpoint
from rlvr_debug.serving.process import served, server_of, why_it_ended
from rlvr_debug.serving.vllm import Trained

__all__ = ["serve"]

_POLL = 0.2  # seconds


def serve(
    model: Path,
    sampler: str,
    settings: Mapping[str, Any],
    trained: Trained | None,
    log: Path,
    out: Path,
) -> None:
    """Until SIGTERM, which ends it with status 0. A server that was ready and ends is started once more.

    trained: as server_of wants it. out: the endpoint's file, written before the model is loaded: who waits
    for it asks /health then. Raises InputError when the server ends by itself.
    """

    def end(*_: object) -> NoReturn:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    server = server_of(sampler, settings, trained)
    for last in (False, True):
        with served(server, model, log) as (endpoint, process):
            write_endpoint(out, endpoint)
            was_ready = _wait(endpoint, process)
            ended = why_it_ended(process, log)
        if last or not was_ready:
            raise InputError(ended)
        print(f"{ended}; it is started once more", file=sys.stderr, flush=True)
        log.replace(log.with_suffix(".ended.log"))


def _wait(endpoint: Endpoint, process: subprocess.Popen[bytes]) -> bool:
    """Until it ends. Returns whether it was ready before."""
    was_ready = False
    while process.poll() is None:
        was_ready = was_ready or is_ready(endpoint)
        time.sleep(_POLL)
    return was_ready
