"""Files in YAML against their JSON schemas: the first error, in one line that says what to write instead."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jsonschema

from rlvr_debug.errors import InputError, hint, typed
from rlvr_debug.files import read_yaml


def _is_number(_: Any, value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _whole_pattern(
    _: Any, pattern: str, value: Any, __: Any
) -> Iterator[jsonschema.ValidationError]:
    if isinstance(value, str) and not re.fullmatch(pattern, value):
        yield jsonschema.ValidationError(f"expected a match of {pattern}")


# JSON Schema takes 3.0 for an integer and knows neither infinity nor NaN, which YAML can write; to
# Python `$` is also the place before a line break at the end
Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {"pattern": _whole_pattern},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": lambda _, value: type(value) is int, "number": _is_number}
    ),
)


@functools.cache
def validator_of(path: Path) -> Any:
    """Return the validator of a schema that the package brings in YAML."""
    return Validator(read_yaml(path))


def check_schema(value: Any, validator: Any, path: Path | str) -> None:
    """Raise InputError for the first place where the value breaks the validator's schema. path: the file that it names."""
    # an unknown key first: a misspelt one is missing too, and only its own error has the hint
    errors = sorted(
        validator.iter_errors(value),
        key=lambda e: (list(map(str, e.path)), e.validator != "additionalProperties", e.message),
    )
    if errors:
        raise InputError(f"{path}: {_explain(errors[0], list(_names(value, errors[0].path)))}")


def _names(value: Any, path: Iterable[Any]) -> Iterator[str]:
    """Yield what leads to a place: keys, and of lists an item's own name or its number."""
    for part in path:
        named, value = isinstance(value, list), value[part]
        yield str(value["name"] if named and isinstance(value, dict) and "name" in value else part)


def _explain(error: Any, names: list[str]) -> str:
    place = ".".join(names) or "the top level"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        full = ".".join([*names, unknown])
        return f"unknown key '{full}': {hint(unknown, known)}"
    if "propertyNames" in error.schema_path:
        full = ".".join([*names, error.instance])
        return f"key '{full}' is no name for it, expected a match of {error.validator_value}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"key '{'.'.join([*names, missing])}' is missing"
    wanted, expected = error.validator_value, str(error.message)
    if isinstance(wanted, list):
        wanted = (" or " if error.validator == "type" else ", ").join(map(str, wanted))
    if error.validator in _EXPECTED:
        expected = _EXPECTED[error.validator].format(wanted)
    return f"key '{place}' is {typed(error.instance)}, {expected}"


# by the schema's keyword
_EXPECTED = {
    "type": "expected {}",
    "enum": "expected one of {}",
    "minimum": "expected at least {}",
    "maximum": "expected at most {}",
    "exclusiveMinimum": "expected more than {}",
    "exclusiveMaximum": "expected less than {}",
    "minItems": "expected at least {} item",
    "minProperties": "expected at least {} key",
    "uniqueItems": "expected each item once",
    "pattern": "expected a match of {}",
}
