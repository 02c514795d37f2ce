"""The one kind of error for bad input, and what its line is made of."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_SHOWN = 40  # characters
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxlong = _repr.maxother = _SHOWN


class InputError(Exception):
    """Bad input. The message, always one line, names the place, what was found and expected."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


def short(value: Any) -> str:
    """Return `value` as an error line shows it: its repr, cut, however long or deep it is."""
    text = _repr.repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def typed(value: Any) -> str:
    """Return `value` with its type, as an error line shows what a file holds."""
    return f"{type(value).__name__} {short(value)}"


def hint(value: str, known: Iterable[str]) -> str:
    """Return what an error line suggests for a name that is not `known`: the nearest one, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(names) or 'none'}"


def reason(error: BaseException) -> str:
    """Return what made a library fail, the first of its errors, as an error line shows it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
