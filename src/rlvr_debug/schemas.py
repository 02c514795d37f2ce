"""Files in YAML against their JSON schemas: the first error, in one line that says what to write instead."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from rlvr_debug.errors import InputError, hint, typed
from rlvr_debug.files import read_yaml

__all__ = ["check_schema", "validator", "validator_of"]


def _is_number(_: Any, value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _whole_pattern(
    _: Any, pattern: str, value: Any, __: Any
) -> Iterator[jsonschema.ValidationError]:
    if isinstance(value, str) and not re.fullmatch(pattern, value):
        yield jsonschema.ValidationError(f"expected a match of {pattern}")


# Makes of a schema what check_schema takes. JSON Schema takes 3.0 for an integer and knows neither infinity nor
# NaN, which YAML can write; to Python `$` is also the place before a line break at the end
validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {"pattern": _whole_pattern},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": lambda _, value: type(value) is int, "number": _is_number}
    ),
)


@functools.cache
def validator_of(path: Path) -> Any:
    """Return the validator of a schema that the package brings in YAML."""
    return validator(read_yaml(path))


def check_schema(value: Any, found: Any, path: Path | str) -> None:
    """Raise InputError for the first place where the value breaks the schema. path: the file that it names."""
    # an unknown key first: a misspelt one is missing too, and only its own error has the hint
    errors = sorted(
        found.iter_errors(value),
        key=lambda e: (list(map(str, e.path)), e.validator != "additionalProperties", e.message),
    )
    if errors:
        raise InputError(f"{path}: {_explain(errors[0])}")


def _explain(error: Any) -> str:
    place = ".".join(map(str, error.path)) or "the top level"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = next(key for key in error.instance if key not in known)
        full = ".".join([*map(str, error.path), unknown])
        return f"unknown key '{full}': {hint(unknown, known)}"
    if "propertyNames" in error.schema_path:
        full = ".".join([*map(str, error.path), error.instance])
        return f"key '{full}' is no name for it, expected a match of {error.validator_value}"
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        return f"key '{'.'.join([*map(str, error.path), missing])}' is missing"
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
