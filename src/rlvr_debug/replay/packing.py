"""Data classes of a record <-> JSON, in which a tensor is the name that it has among the tensors.

JSON has neither NaN nor infinity: in lists of numbers, null is NaN, and "Infinity" and "-Infinity" are words.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from rlvr_debug.errors import InputError, typed

__all__ = ["packed", "plain", "unpacked"]

_WORDS = {"Infinity": math.inf, "-Infinity": -math.inf}


def packed(value: Any, place: str, keep: Callable[[str, Tensor], str]) -> Any:
    """Return JSON. place: path of the value; keep: takes a path and its tensor, and returns the tensor's name."""
    if isinstance(value, Tensor):
        return keep(place, value)
    if is_dataclass(value):
        return {
            name: packed(each, _below(place, name), keep) for name, each in _told(value).items()
        }
    if isinstance(value, Mapping):
        return {name: packed(each, _below(place, name), keep) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [packed(each, _below(place, number), keep) for number, each in enumerate(value)]
    return _number(value) if isinstance(value, float) else value


def _told(value: Any) -> dict[str, Any]:
    """Return the fields that are written: all but those that are None, unless that is a choice."""
    found = {field: getattr(value, field.name) for field in fields(value)}
    return {
        field.name: each
        for field, each in found.items()
        if each is not None or field.default not in (None, MISSING)
    }


def _below(place: str, part: object) -> str:
    return f"{place}/{part}" if place else str(part)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


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


def unpacked(kind: Any, told: Any, place: str, tensors: Mapping[str, Tensor]) -> Any:
    """Return an object of a type from JSON that its schema has let pass; a tensor that is left out is empty.

    Raise InputError, without the file, for the name of a tensor that is not there.
    """
    if kind is Tensor:
        if told not in tensors:
            raise InputError(
                f"key '{place}' is {typed(told)}, expected the name of a tensor of tensors.safetensors"
            )
        return tensors[told]
    if kind is float:
        return _float(told, place)
    if is_dataclass(kind):
        return _object(kind, told, place, tensors)
    inner, many = get_args(kind), get_origin(kind)
    if many in (Union, types.UnionType):  # of something and None
        return None if told is None else unpacked(inner[0], told, place, tensors)
    if many is list and inner[0] is float:
        return [_float(each, place) for each in told]
    if many in (list, tuple) and inner[0] in (int, str):
        return many(told)
    if many in (list, tuple):
        kinds = inner if many is tuple and Ellipsis not in inner else (inner[0],) * len(told)
        each = (
            unpacked(one, value, f"{place}.{number}", tensors)
            for number, (one, value) in enumerate(zip(kinds, told, strict=True))
        )
        return many(each)
    if isinstance(told, dict) and inner:
        return {
            name: unpacked(inner[1], value, f"{place}.{name}", tensors)
            for name, value in told.items()
        }
    return told


def _float(told: Any, place: str) -> float:
    if told is None:
        return math.nan
    found = _WORDS.get(told) if isinstance(told, str) else told
    if isinstance(found, bool) or not isinstance(found, int | float):
        words = ", ".join(map(repr, _WORDS))
        raise InputError(f"key '{place}' is {typed(told)}, expected a number, null, {words}")
    return float(found)


def _object(kind: Any, told: Mapping[str, Any], place: str, tensors: Mapping[str, Tensor]) -> Any:
    given = {
        name: unpacked(_hints(kind)[name], value, f"{place}.{name}".lstrip("."), tensors)
        for name, value in told.items()
    }
    tensorless = {
        field.name: torch.zeros(0)
        for field in fields(kind)
        if field.name not in given and _hints(kind)[field.name] is Tensor
    }
    return kind(**given, **tensorless)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)
