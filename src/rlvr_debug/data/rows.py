"""What every environment's rows have in common, and how they are checked."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import MISSING, asdict, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints

from rlvr_debug.errors import InputError, short

__all__ = ["Row", "Text"]

# the type of a field that says something
Text = Annotated[str, "not empty"]
Parsed = TypeVar("Parsed", bound=Hashable)


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
    known = _fields(kind)
    found = {**{key: default for key, _, default in known if default is not MISSING}, **row}
    return kind(**{key: _value(found, key, expected, where) for key, expected, _ in known})


@cache
def _fields(kind: Any) -> list[tuple[str, Any, Any]]:
    """Return name, type and default of each."""
    types = get_type_hints(kind, include_extras=True)
    return [(each.name, types[each.name], each.default) for each in fields(kind)]


def _value(row: dict[str, Any], key: str, expected: Any, where: str) -> Any:
    if expected == Text:
        value: str = _field(row, key, str, where)
        if not value.strip():
            raise InputError(f"{where}: key '{key}' is empty, expected text")
        return value
    if get_origin(expected) is not tuple:
        return _field(row, key, get_args(expected) or expected, where)
    element = get_args(expected)[0]
    values = {f"{key}[{i}]": value for i, value in enumerate(_field(row, key, list, where))}
    if element is str:
        return tuple(_field(values, place, element, where) for place in values)
    if not values:
        raise InputError(f"{where}: key '{key}' is empty, expected at least one object")
    for place, each in values.items():
        if not isinstance(each, dict):
            raise InputError(f"{where}: {place} is {type(each).__name__}, expected an object")
    return tuple(_parsed(element, each, f"{where}: {at}") for at, each in values.items())


def _field(row: dict[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    if key not in row:
        raise InputError(f"{where}: key '{key}' is missing, expected {_name(kind)}")
    value = row[key]
    # bool is an int in Python; an answer of `true` or an idx of `false` is a broken row
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(
            f"{where}: key '{key}' is {type(value).__name__} {short(value)}, expected {_name(kind)}"
        )
    # JSON can spell half a character, which no file can hold
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise InputError(f"{where}: key '{key}' holds a lone surrogate, expected Unicode")
    return value


def _name(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
