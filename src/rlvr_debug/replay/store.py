"""A record as a folder, in a format that any program can write: docs/record.md.

    record.json           what there is, and the names of its tensors
    tensors.safetensors   the tensors
    model/config.json     the architecture
    tokenizer/            what a tokenizer's save_pretrained writes

Nothing of it is unpickled, and none of its code is run.
"""

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
from rlvr_debug.replay.architecture import read_model, read_tokenizer, write_model
from rlvr_debug.replay.check import check
from rlvr_debug.replay.consistent import check_needed, check_record
from rlvr_debug.replay.declared import Own, declared
from rlvr_debug.replay.record import TOKENS, Batch, Generation, Record, Weights

VERSION = 2  # and 1, which has no processes
_RECORD, _TENSORS, _MODEL, _TOKENIZER = "record.json", "tensors.safetensors", "model", "tokenizer"


def check_folder(folder: Path, read: Callable[[Path], Record] | None = None) -> dict[str, Any]:
    """Return what the check says of a record (answer.py). Raise InputError for a folder that is none. read: of another format."""
    started = time.perf_counter()
    record = replace((read or read_record)(folder), own=Own(declared=declared()))
    return answered(record, time.perf_counter() - started, "read")


def answered(record: Record, ran: float, what: str = "steps") -> dict[str, Any]:
    """Return what the check says of a record. ran: the seconds that its steps took, or what else was done to have it."""
    started = time.perf_counter()
    found = check(record)
    took = time.perf_counter() - started
    return {**answer_of(record, found), "seconds": {what: ran, "check": took}}


# --- writing


def write_record(record: Record, folder: Path) -> None:
    """Write a new folder with all of the record, or nothing; what JSON has no place for is left out, and noted."""
    from safetensors.torch import save_file
    from transformers.utils import get_json_schema

    notes, tensors, names = list(record.notes), dict[str, Tensor](), dict[str, str]()

    def keep(place: str, tensor: Tensor) -> str:
        """Keep a tensor by the path of its first place; what is the same elsewhere, to the bit, once."""
        name = names.setdefault(digest(tensor), place)
        tensors.setdefault(name, tensor.detach().cpu().contiguous())
        return name

    with _new(folder) as part:
        notes.append(write_model(record.build, part / _MODEL))
        if record.tokenizer is not None:
            record.tokenizer.save_pretrained(part / _TOKENIZER)
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
            keep,
        )
        told.pop("build")
        told["settings"]["template_options"] = plain(dict(record.settings.template_options))
        text = json.dumps({"version": VERSION, **told}, allow_nan=False)
        (part / _RECORD).write_text(text + "\n", encoding="utf-8")
        save_file(tensors, part / _TENSORS)
        shutil.copymode(part / _RECORD, part / _TENSORS)  # safetensors lets nobody else read it


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """Yield a folder beside it that gets its name in the end."""
    if folder.exists():
        raise InputError(f"{folder}: exists; give a new folder for the record")
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    part.mkdir(parents=True)
    try:
        yield part
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def digest(*tensors: Tensor) -> str:
    """Return a word that is the same where the numbers are, to the bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        numbers: Any = flat.view(torch.uint8).numpy()
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(numbers)
    return found.hexdigest()[:16]


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
    """Return JSON of a record's data classes. keep: takes the path of a tensor and the tensor, and returns its name.

    JSON has neither NaN nor infinity: in lists of numbers null is NaN, and "Infinity" and "-Infinity" are words.
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
    told, tensors = _told(path), read_tensors(folder / _TENSORS)
    record = _completed(checked(Record, told, path, context=tensors))
    with _named(path):
        check_needed(told)
    return finished(record, folder, path)


def finished(record: Record, folder: Path, path: Path) -> Record:
    """Return the record with its folder's model and tokenizer. Raise InputError, which names `path`, if a part does not fit."""
    weights = record.weights[0] if record.weights else record.reference or {}
    record.build, architecture = read_model(folder / _MODEL, len(weights))
    record.tokenizer = read_tokenizer(folder / _TOKENIZER)
    with _named(path):
        check_record(record, architecture)
    return record if architecture is None else _untied(record, architecture.tied)


def read_part(folder: Path) -> Record:
    """Return what one of several processes recorded, without model and tokenizer, as it was written."""
    path = folder / _RECORD
    return _completed(checked(Record, _told(path), path, context=read_tensors(folder / _TENSORS)))


def _untied(record: Record, tied: Mapping[str, str]) -> Record:
    """Return the record with each tied weight under one of its names, as modules name their parameters."""

    def once(weights: Weights) -> Weights:
        return {name: tensor for name, tensor in weights.items() if name not in tied}

    return replace(
        record,
        weights=[*map(once, record.weights)],
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
    if not path.parent.is_dir():
        found = "is a file" if path.parent.exists() else "no such folder"
        raise InputError(f"{path.parent}: {found}, expected a folder of a record, with {_RECORD}")
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected a folder of a record (docs/record.md)")
    told = read_json(path)
    if not isinstance(told, dict):
        raise InputError(f"{path}: found {typed(told)}, expected a JSON object with key 'version'")
    # half of a character, which nothing can print, is a question mark
    told = json.loads(json.dumps(told, ensure_ascii=False).encode("utf-8", "replace"))
    version = told.get("version")
    if type(version) is not int or version not in (1, VERSION):
        expected = f"expected 1 or {VERSION} (docs/record.md)"
        raise InputError(f"{path}: version is {typed(version)}, {expected}")
    return {name: value for name, value in told.items() if name != "version"}


def read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not path.is_file():
        raise InputError(f"{path}: no such file, expected safetensors")
    try:
        return dict(load_file(path))
    except Exception as error:  # whatever is wrong with the bytes
        raise InputError(f"{path}: {reason(error)}, expected safetensors") from None


def _completed(record: Record) -> Record:
    """Return the record with tokens that are left out without width."""

    def completed(batch: Batch) -> Batch:
        if batch.completion_ids.numel() or not batch.advantages.dim():
            return batch
        none = torch.zeros(len(batch.advantages), 0, dtype=torch.long)
        return replace(batch, **dict.fromkeys(TOKENS, none))

    for generation in record.generations:
        generation.batch = generation.batch and completed(generation.batch)
    for micro in (each for update in record.updates for each in update.micro_batches):
        micro.given = completed(micro.given)
    record.elements = {name: places.long() for name, places in record.elements.items()}
    return record
