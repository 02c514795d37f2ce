"""Checks of one tensor, or of lists of numbers: type, shape, limits. Each raises InputError, without the file.

A shape is a tuple of lengths, of which None may be any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rlvr_debug.errors import InputError, short

__all__ = ["Shape", "check_count", "check_ids", "check_real", "check_whole", "refused"]

Shape = tuple[int | None, ...]


def refused(key: str, found: str, expected: str) -> InputError:
    """Return the error that says what is found at a key."""
    return InputError(f"key '{key}' is {found}, expected {expected}")


def check_real(key: str, tensor: Tensor, *shapes: Shape) -> None:
    """Check a tensor of floating point numbers, of one of these shapes."""
    if not tensor.is_floating_point():
        raise refused(key, f"of type {tensor.dtype}", "a floating point type")
    _check_shape(key, tensor, shapes)


def check_whole(key: str, tensor: Tensor, count: int | None, *shapes: Shape) -> None:
    """Check a tensor of whole numbers from 0, below `count`, of one of these shapes."""
    if tensor.is_floating_point() or tensor.is_complex():
        raise refused(key, f"of type {tensor.dtype}", "an integer type")
    _check_shape(key, tensor, shapes)
    if tensor.numel():
        _check_limits(key, int(tensor.min()), int(tensor.max()), count)


def check_ids(key: str, rows: Sequence[Any], count: int | None) -> None:
    """Check lists of token ids, each below `count`."""
    for number, row in enumerate(rows):
        wrong = row if not isinstance(row, list) else [x for x in row if type(x) is not int]
        if wrong or not isinstance(row, list):
            raise refused(f"{key}.{number}", short(wrong), "a list of token ids")
        if row:
            _check_limits(f"{key}.{number}", min(row), max(row), count)


def check_count(key: str, found: int, expected: int, what: str) -> None:
    """Check that a list is of a length."""
    if found != expected:
        raise refused(key, f"of length {found}", f"{expected}, {what}")


def _check_shape(key: str, tensor: Tensor, shapes: Sequence[Shape]) -> None:
    found = tuple(tensor.shape)
    for each in shapes:
        if len(each) == len(found) and all(
            wanted in (None, got) for got, wanted in zip(found, each, strict=True)
        ):
            return
    said = " or ".join(
        f"[{', '.join('any' if length is None else str(length) for length in each)}]"
        for each in shapes
    )
    raise refused(key, f"of shape {list(found)}", said)


def _check_limits(key: str, least: int, most: int, count: int | None) -> None:
    if least < 0 or (count is not None and most >= count):
        wrong = least if least < 0 else most
        limits = "0 or more" if count is None else f"from 0 to {count - 1}"
        raise refused(key, f"{short(wrong)} somewhere", limits)
