"""A record as a folder, in a format that any program can write: docs/record.md.

    record.json           what there is, and the names of its tensors
    tensors.safetensors   the tensors
    model/config.json     the architecture
    tokenizer/            what a tokenizer's save_pretrained writes

Nothing of it is unpickled, and none of its code is run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.blocks import checked
from rlvr_debug.errors import InputError, reason, typed
from rlvr_debug.files import read_json
from rlvr_debug.replay.answer import answer_of
from rlvr_debug.replay.architecture import (
    read_model,
    read_tokenizer,
    write_model,
    write_tokenizer,
)
from rlvr_debug.replay.check import check
from rlvr_debug.replay.consistent import check_needed, check_record
from rlvr_debug.replay.declared import Own, declared
from rlvr_debug.replay.record import TOKENS, Batch, Generation, Record, Weights

VERSION = 2  # and 1, which has no processes
_RECORD, _TENSORS, _MODEL, _TOKENIZER = "record.json", "tensors.safetensors", "model", "tokenizer"


def check_folder(folder: Path) -> dict[str, Any]:
    """Return what the check says of a record (answer.py). Raise InputError for a folder that is none."""
    started = time.perf_counter()
    record = replace(read_record(folder), own=Own(declared=declared()))
    took = time.perf_counter() - started
    checked = check(record)
    seconds = {"read": took, "check": time.perf_counter() - started - took}
    return answer_of(record, checked) | {"seconds": seconds}


# --- writing


def write_record(record: Record, folder: Path) -> None:
    """Write a new folder with all of the record, or nothing. Raise InputError where it exists.

    What JSON has no place for in the columns of rows is left out, and the notes say so.
    """
    from safetensors.torch import save_file
    from transformers.utils import get_json_schema

    tensors, notes = _Tensors(), list(record.notes)
    with _new(folder) as part:
        notes.append(write_model(record.build, part / _MODEL))
        write_tokenizer(record.tokenizer, part / _TOKENIZER)
        told = packed(
            replace(
                record,
                tokenizer=None,
                own=None,
                tools=record.tools
                and [get_json_schema(t) if callable(t) else t for t in record.tools],
                generations=[_plain(generation, notes) for generation in record.generations],
                notes=list(dict.fromkeys(filter(None, notes))),
            ),
            "",
            tensors.keep,
        )
        told.pop("build")
        told["settings"]["template_options"] = plain(dict(record.settings.template_options))
        text = json.dumps({"version": VERSION, **told}, allow_nan=False)
        (part / _RECORD).write_text(text + "\n", encoding="utf-8")
        save_file(tensors.kept, part / _TENSORS)
        shutil.copymode(part / _RECORD, part / _TENSORS)  # safetensors lets nobody else read it


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """Yield a folder beside it that gets its name in the end."""
    if folder.exists():
        raise InputError(f"{folder}: exists, expected a new folder for the record")
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        yield part
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


class _Tensors:
    """Tensors by the path of their first place. What is the same elsewhere, to the bit, is kept once."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def keep(self, place: str, tensor: Tensor) -> str:
        flat = tensor.detach().cpu().contiguous()
        numbers: Any = flat.reshape(-1).view(torch.uint8).numpy()
        digest = hashlib.sha256(numbers).hexdigest()
        key = (flat.dtype, tuple(flat.shape), digest)
        if key not in self._names:
            self._names[key], self.kept[place] = place, flat
        return self._names[key]


def _plain(generation: Generation, notes: list[str]) -> Generation:
    """Return the generation with what its program had in rows and columns as JSON."""
    names = dict.fromkeys(name for row in generation.rows for name in row)
    kept = [name for name in names if _is_plain([row.get(name) for row in generation.rows])]
    rows = [{name: plain(row[name]) for name in kept if name in row} for row in generation.rows]
    calls, lost = [], []
    for call in generation.reward_calls:
        columns = {
            name: plain(values)
            for name, values in call.columns.items()
            if isinstance(values, list | tuple) and _is_plain(values)
        }
        lost += [name for name in call.columns if name not in columns]
        calls.append(replace(call, columns=columns))
    lost += [name for name in names if name not in kept]
    notes += [f"the column {name} is left out: JSON has no place for it" for name in lost]
    messages = plain(generation.messages) if _is_plain(generation.messages) else None
    return replace(generation, rows=rows, reward_calls=calls, messages=messages)


def _is_plain(value: Any) -> bool:
    try:
        plain(value)
    except TypeError:
        return False
    return True


def packed(value: Any, place: str, keep: Callable[[str, Tensor], str]) -> Any:
    """Return JSON of a record's data classes. place: path of the value; keep: takes a path and its tensor, and returns the tensor's name.

    JSON has neither NaN nor infinity: in lists of numbers, null is NaN, and "Infinity" and "-Infinity" are words.
    """
    if isinstance(value, Tensor):
        return keep(place, value)
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list | tuple):
        return [packed(each, f"{place}/{number}", keep) for number, each in enumerate(value)]
    if is_dataclass(value):
        # None is left out, unless that is a choice
        named = ((field, getattr(value, field.name)) for field in fields(value))
        value = {f.name: v for f, v in named if v is not None or f.default not in (None, MISSING)}
    if not isinstance(value, Mapping):
        return value
    begin = f"{place}/" if place else ""
    return {name: packed(each, f"{begin}{name}", keep) for name, each in value.items()}


def plain(value: Any) -> Any:
    """Return what a program of any kind had in a row as JSON. Raise TypeError for what JSON has no place for."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and torch
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} is no JSON")


# --- reading


def read_record(folder: Path) -> Record:
    """Return the record. Raise InputError, one line that names file, key, found and expected, for any other folder."""
    path = folder / _RECORD
    told, tensors = _told(path), _tensors(folder / _TENSORS)
    record = _completed(checked(Record, told, path, context=tensors))
    with _named(path):
        check_needed(told)
    weights = record.weights[0] if record.weights else record.reference or {}
    record.build, architecture = read_model(folder / _MODEL, len(weights))
    record.tokenizer = read_tokenizer(folder / _TOKENIZER)
    with _named(path):
        check_record(record, architecture)
    return record if architecture is None else _untied(record, architecture.tied)


def read_part(folder: Path) -> Record:
    """Return what one of several processes recorded, without model and tokenizer, as it was written."""
    path = folder / _RECORD
    return _completed(checked(Record, _told(path), path, context=_tensors(folder / _TENSORS)))


def _untied(record: Record, tied: Mapping[str, str]) -> Record:
    """Return the record with each tied weight under one of its names, as modules name their parameters."""

    def once(weights: Weights) -> Weights:
        return {name: tensor for name, tensor in weights.items() if name not in tied}

    return replace(
        record,
        weights=[once(weights) for weights in record.weights],
        trainable=tuple(name for name in record.trainable if name not in tied),
        reference=None if record.reference is None else once(record.reference),
    )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file of an error that names none."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _told(path: Path) -> dict[str, Any]:
    """Return what a record.json of this version says."""
    if not path.parent.is_dir():
        found = "is a file" if path.parent.exists() else "no such folder"
        raise InputError(f"{path.parent}: {found}, expected one with {_RECORD}")
    told = read_json(path)
    if not isinstance(told, dict):
        raise InputError(f"{path}: found {typed(told)}, expected an object with the key 'version'")
    told = _whole_characters(told)
    version = told.get("version")
    if type(version) is not int or version not in (1, VERSION):
        raise InputError(
            f"{path}: version is {typed(version)}, expected 1 or {VERSION} (docs/record.md)"
        )
    return {name: value for name, value in told.items() if name != "version"}


def _whole_characters(told: dict[str, Any]) -> dict[str, Any]:
    """Return the same, with a question mark for each half of a character, which nothing can print."""
    text = json.dumps(told, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        found: dict[str, Any] = json.loads(text.encode("utf-8", "replace"))
        return found
    return told


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not path.is_file():
        raise InputError(f"{path}: no such file, expected the record's tensors")
    try:
        return dict(load_file(path))
    except Exception as error:  # whatever is wrong with the bytes
        raise InputError(f"{path}: {reason(error)}, expected safetensors") from None


def _completed(record: Record) -> Record:
    """Return the record with tokens that are left out without width."""
    for generation in record.generations:
        if generation.batch is not None:
            generation.batch = _with_tokens(generation.batch)
    record.elements = {name: places.long() for name, places in record.elements.items()}
    for update in record.updates:
        for micro in update.micro_batches:
            micro.given = _with_tokens(micro.given)
    return record


def _with_tokens(batch: Batch) -> Batch:
    if batch.completion_ids.numel() or not batch.advantages.dim():
        return batch
    none = torch.zeros(len(batch.advantages), 0, dtype=torch.long)
    return replace(batch, **dict.fromkeys(TOKENS, none))
