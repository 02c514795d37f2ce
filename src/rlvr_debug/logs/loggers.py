"""Rows of what loggers write themselves, read with the libraries of their makers, each of them an extra: TensorBoard, Weights & Biases."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError, short


def tensorboard_rows(path: Path) -> list[dict[str, Any]]:
    """Return a row per step of a file of events: its scalars by tag, and seconds since the first of them."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise _missing(path, "TensorBoard's events", "tensorboard") from None
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    # 0: every value; of what is no number, next to nothing
    kept = {"scalars": 0, "tensors": 0, "images": 1, "audio": 1, "histograms": 1}
    found = EventAccumulator(str(path), size_guidance=kept, purge_orphaned_data=False)
    try:
        found.Reload()
        tags = found.Tags()
        values = [(tag, e, e.value) for tag in tags["scalars"] for e in found.Scalars(tag)]
        values += [
            (tag, event, array.item())
            for tag in tags["tensors"]
            for event in found.Tensors(tag)
            if (array := make_ndarray(event.tensor_proto)).size == 1 and array.dtype.kind in "fiu"
        ]
    except Exception as error:  # the library has no error of its own for a file that is broken
        raise InputError(
            f"{path}: expected TensorBoard's events, found: {short(str(error))}"
        ) from None
    if not values:
        raise InputError(f"{path}: found no TensorBoard scalars, expected some such as reward")
    values.sort(key=lambda each: each[1].wall_time)
    begun = values[0][1].wall_time
    rows: dict[int, dict[str, Any]] = {}
    for tag, event, value in values:
        row = rows.setdefault(event.step, {"step": event.step})
        row |= {tag: float(value), "_runtime": event.wall_time - begun}
    return [rows[step] for step in sorted(rows)]


def wandb_rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return the history of a run that Weights & Biases kept in a file of its own, a row per call of log, and whether it is whole."""
    try:
        from wandb.proto import wandb_internal_pb2
        from wandb.sdk.internal.datastore import DataStore
    except ImportError:
        raise _missing(path, "Weights & Biases' own log", "wandb") from None
    store = DataStore()
    try:
        store.open_for_scan(str(path))
        return _history(store, wandb_internal_pb2.Record)
    except Exception as error:  # assertions and protobuf's errors, of a file that is broken
        found = short(str(error)) if str(error) else "another format, or nothing"
        raise InputError(f"{path}: expected a run of Weights & Biases, found: {found}") from None
    finally:
        store.close()


def _history(store: Any, record_of: Any) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows up to the end, or to where the file is cut off or broken."""
    rows: list[dict[str, Any]] = []
    while True:
        try:
            data = store.scan_data()
        except AssertionError:
            if not rows:
                raise
            return rows, False
        if data is None:
            return rows, True
        record = record_of()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append(_row(record.history))


def _row(history: Any) -> dict[str, Any]:
    values = {x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in history.item}
    media = [n for n, value in values.items() if isinstance(value, Mapping) and "_type" in value]
    return {name: value for name, value in values.items() if name not in media}


def _missing(path: Path, what: str, extra: str) -> InputError:
    return InputError(
        f"{path}: reading {what} needs the package {extra}: pip install 'rlvr-debug[{extra}]'"
    )
