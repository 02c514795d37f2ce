"""What every environment's rows have in common, and how they are checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import MISSING, asdict, fields
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from rlvr_debug.errors import InputError, short

# the type of a field that says something
Text = Annotated[str, "not empty"]
Parsed = TypeVar("Parsed", bound=Hashable)
Kinds = tuple[type, ...]
Read = Callable[[Any, str, str], Any]


class Row:
    """A question with its answer: the base of an environment's frozen data class.

    `where` (file:line) begins every error.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    id: Text
    question: Text
    answer: Text

    @property
    def hops(self) -> int:
        """Return how many steps the answer takes, at least 1."""
        return 1

    @property
    def components(self) -> tuple[str, ...]:
        """Return what training and held-out rows must not share, beside the question."""
        return ()

    @classmethod
    def parse(cls, columns: dict[str, Any], where: str) -> Self:
        row = _parsed(cls, columns, where)
        row.check(where)
        return row

    def check(self, where: str) -> None:
        """Raise InputError for what the types of the fields do not say."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _parsed(kind: type[Parsed], row: dict[str, Any], where: str) -> Parsed:
    """Make a data class of the keys that its fields name, each checked by the field's type.

    A field without a default must be there. A tuple is a list in JSON: of strings, or of one or more objects.
    """
    values = {}
    for key, read, kinds, default in _fields(kind):
        if key in row:
            values[key] = read(row[key], key, where)
        elif default is not MISSING:
            values[key] = default
        else:
            raise InputError(f"{where}: key '{key}' is missing, expected {_name(kinds)}")
    return kind(**values)


@cache
def _fields(kind: Any) -> list[tuple[str, Read, Kinds, Any]]:
    """Return name, reader, types in JSON and default of each."""
    types = get_type_hints(kind, include_extras=True)
    return [(each.name, *_reader(types[each.name]), each.default) for each in fields(kind)]


def _reader(expected: Any) -> tuple[Read, Kinds]:
    """Return what checks a value (value, key, where) and returns it as a field has it, and its types in JSON."""
    if expected == Text:
        return _text, (str,)
    if get_origin(expected) is not tuple:
        kinds = get_args(expected) or (expected,)
        return partial(_plain, kinds), kinds
    element = get_args(expected)[0]
    return partial(_strings if element is str else _objects, element), (list,)


def _text(value: Any, key: str, where: str) -> str:
    text: str = _plain((str,), value, key, where)
    if not text.strip():
        raise InputError(f"{where}: key '{key}' is empty, expected text")
    return text


def _strings(element: type, values: Any, key: str, where: str) -> tuple[Any, ...]:
    found = _plain((list,), values, key, where)
    return tuple(_plain((element,), each, f"{key}[{i}]", where) for i, each in enumerate(found))


def _objects(element: type[Parsed], values: Any, key: str, where: str) -> tuple[Parsed, ...]:
    found = _plain((list,), values, key, where)
    if not found:
        raise InputError(f"{where}: key '{key}' is empty, expected at least one object")
    for i, each in enumerate(found):
        if not isinstance(each, dict):
            raise InputError(f"{where}: {key}[{i}] is {type(each).__name__}, expected an object")
    return tuple(_parsed(element, each, f"{where}: {key}[{i}]") for i, each in enumerate(found))


def _plain(kinds: Kinds, value: Any, key: str, where: str) -> Any:
    # bool is an int in Python; an answer of `true` or an idx of `false` is a broken row
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise InputError(
            f"{where}: key '{key}' is {type(value).__name__} {short(value)}, expected {_name(kinds)}"
        )
    # JSON can spell half a character, which no file can hold
    if isinstance(value, str) and not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise InputError(f"{where}: key '{key}' holds a lone surrogate, expected Unicode")
    return value


def _name(kinds: Kinds) -> str:
    return " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
