"""Data classes of a record -> JSON, in which a tensor is the name that it has among the tensors.

JSON has neither NaN nor infinity: in lists of numbers, null is NaN, and "Infinity" and "-Infinity" are words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from torch import Tensor

__all__ = ["packed", "plain"]


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
