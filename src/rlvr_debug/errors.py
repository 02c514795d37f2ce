"""The one kind of error for bad input, and what its line is made of."""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_SHOWN = 40  # characters
_WORDS = {str: "text ", int: "", float: "", list: "list ", dict: "keys "}
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxlong = _repr.maxother = _SHOWN


class InputError(Exception):
    """Bad input. The message, always one line, names the place, what was found and expected."""

    def __init__(self, message: str) -> None:
        super().__init__(plain(" ".join(message.splitlines())))


def plain(text: str) -> str:
    """Return the text with what a terminal would obey, which a log, a record or a model may hold, as an escape: \\x1b."""
    shown = (c if c.isprintable() or c == "\n" else c.encode("unicode_escape") for c in text)
    return "".join(c if isinstance(c, str) else c.decode() for c in shown)


def short(value: Any) -> str:
    """Return `value` as an error line shows it: its repr, cut, however long or deep it is."""
    text = _repr.repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def typed(value: Any) -> str:
    """Return `value` with what it is, as an error line shows what a file holds."""
    if value is None or isinstance(value, bool):
        return "empty" if value is None else str(value).lower()
    return f"{_WORDS.get(type(value), type(value).__name__ + ' ')}{short(value)}"


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
