"""Send rows of metrics to Weights & Biases and TensorBoard as they come, through accelerate's trackers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError

PROJECT = "rlvr-debug"
# accelerate's names, which are also those of the packages
_PACKAGES = ("tensorboard", "wandb")


@contextmanager
def open_trackers(
    names: Sequence[str], folder: Path, run_name: str, config: Mapping[str, Any]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that logs one row at its step. Files go under `folder`.

    Weights & Biases sends nothing unless WANDB_MODE says so; `wandb sync` uploads what it wrote. Raise
    InputError for a tracker that is not installed.
    """
    for name in names:
        if name in _PACKAGES and find_spec(name) is None:
            raise InputError(
                f"diagnostics.trackers names {name}, and the package is not installed: "
                f"pip install {name}"
            )
    trackers = [_tracker(name, folder, run_name) for name in names]
    for tracker in trackers:
        tracker.start()
        tracker.store_init_configuration(dict(config))

    def log(row: Mapping[str, Any]) -> None:
        values = {name: value for name, value in row.items() if name != "step"}
        for tracker in trackers:
            tracker.log(values, step=row["step"])

    try:
        yield log
    finally:
        for tracker in trackers:
            tracker.finish()


def _tracker(name: str, folder: Path, run_name: str) -> Any:
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # trackers ask it which process they are in
    folder.mkdir(parents=True, exist_ok=True)
    kind = LOGGER_TYPE_TO_CLASS[name]
    options = {}
    if name == "wandb":
        mode = os.environ.get("WANDB_MODE", "offline")
        options = {"dir": str(folder), "name": run_name, "mode": mode}
    where = [str(folder)] if kind.requires_logging_directory else []
    return kind(PROJECT, *where, **options)
