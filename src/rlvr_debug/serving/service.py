"""The server that the jobs of a study share, as a job itself."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rlvr_debug.errors import InputError
from rlvr_debug.serving.endpoint import write_endpoint
from rlvr_debug.serving.process import served, server_of, why_it_ended

__all__ = ["serve"]

_POLL = 0.2  # seconds


def serve(model: Path, sampler: str, settings: Mapping[str, Any], log: Path, out: Path) -> None:
    """Until SIGTERM, which ends it with status 0. Raises InputError when the server ends by itself.

    out: the endpoint's file, written before the model is loaded: who waits for it asks /health then.
    """

    def end(*_: object) -> NoReturn:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    with served(server_of(sampler, settings), model, log) as (endpoint, process):
        write_endpoint(out, endpoint)
        while process.poll() is None:
            time.sleep(_POLL)
        raise InputError(why_it_ended(process, log))
