"""Blocks of parameters: data classes that pydantic reads from YAML, whole, and the one line that says what is wrong."""

import ast
import functools
import inspect
import itertools
import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    Strict,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from rlvr_debug.errors import InputError, hint, typed

T = TypeVar("T")

A_LIST, A_MAPPING = Tag("a list"), Tag("a mapping")

_EMPTY: tuple[Any, ...] = (None, "", [], {})

# YAML says what is a number, a word and what is true: nothing is converted
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Natural = Annotated[int, Strict(), Ge(0)]
Count = Annotated[int, Strict(), Ge(1)]
NonNegative = Annotated[float, Strict(), Ge(0)]
Positive = Annotated[float, Strict(), Gt(0)]
Share = Annotated[float, Strict(), Ge(0), Le(1)]


# what a text must match, in words
_PATTERNS: dict[str, str] = {}


def matching(pattern: str, words: str) -> Any:
    """Return the field of a text that must match a pattern. words: what an error says is expected."""
    _PATTERNS[pattern] = words
    return Field(pattern=pattern)


def _number(value: Any) -> Any:
    if type(value) is not int and not (type(value) is float and math.isfinite(value)):
        raise PydanticCustomError("float_type", "number")
    return value


# as it is written: 2 stays an integer
Number = Annotated[float, PlainValidator(_number)]


class _Once:
    """Annotates a list that has each item once."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(_each_once, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return {**handler(schema), "uniqueItems": True}


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if any(value in values[:place] for place, value in enumerate(values)):
        raise PydanticCustomError("repeated", "items")
    return values


ONCE = _Once()
Unique = Annotated[tuple[T, ...], ONCE]


def _kind_of(value: Any) -> str | None:
    if isinstance(value, list | str | tuple):
        return A_LIST.tag
    return A_MAPPING.tag if isinstance(value, dict) else None


def by_kind(expected: str) -> Discriminator:
    """Annotate a union of what has the two tags. expected: what a value must be that is neither."""
    return Discriminator(_kind_of, "neither", expected)


class Block:
    """The keys below one key of params.yaml, each with its description in a string below it; a file says all but those of `may_lack`."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", allow_inf_nan=False)
    may_lack: ClassVar[tuple[str, ...]] = ()
    elsewhere: ClassVar[tuple[str, ...]] = ()  # fields that no file says

    @classmethod
    def required(cls, given: Mapping[str, Any]) -> list[str]:
        """Return the keys that a file must say that says those which are given."""
        return [key for key in _in_files(cls) if key not in cls.may_lack]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        def check(value: Any) -> Any:
            if isinstance(value, dict):
                _check_keys(value, list(_in_files(cls)), cls.required(value))
            return value

        return core_schema.no_info_before_validator_function(check, handler(source))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        found = handler.resolve_ref_schema(handler(schema))
        found.pop("title")
        found["required"] = cls.required({})
        for key in cls.elsewhere:
            del found["properties"][key]
        for key, name in _in_files(cls).items():
            node, usual = found["properties"][key], told(_default(cls, key))
            node.setdefault("description", _descriptions(cls).get(name))
            node.pop("default", None)
            # an empty one stands for a key that is not said, and may be no value of it
            if usual is not MISSING and not (key in cls.may_lack and usual in _EMPTY):
                node["default"] = usual
        return found


class Entry(Block):
    """A block of another file than params.yaml: what has a default may be left out."""

    @classmethod
    def required(cls, given: Mapping[str, Any]) -> list[str]:
        return [key for key in _in_files(cls) if _default(cls, key) is MISSING]


def _keys_of(kind: Any) -> dict[str, str]:
    """Return the names of a block's fields by their keys in a file; only a word of Python's is another."""
    return {field.name.removesuffix("_"): field.name for field in fields(kind)}


keys_of: Callable[[Any], dict[str, str]] = functools.cache(_keys_of)


def _in_files(block: type[Block]) -> dict[str, str]:
    """Return the names of those fields that a file may say, by their keys."""
    return {key: name for key, name in keys_of(block).items() if key not in block.elsewhere}


def _check_keys(value: Mapping[str, Any], known: Collection[str], required: list[str]) -> None:
    for key in value:
        if key not in known:
            raise PydanticCustomError("unknown_key", "{key}", {"key": key, "known": list(known)})
    for key in required:
        if key not in value:
            raise PydanticCustomError("missing_key", "{key}", {"key": key})


class OneOf:
    """Annotates a string that is one of names which are found when the file is read."""

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self.names = names

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.literal_schema(list(self.names()))


class Keyed:
    """Annotates a mapping with a type for each key; `whole`: a file says every key; `others`: the type of all other keys."""

    def __init__(
        self,
        kinds: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        whole: bool = False,
        fewest: int = 0,
        others: Any = None,
    ) -> None:
        self.kinds, self.whole, self.fewest, self.others = kinds, whole, fewest, others

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        kinds = self.kinds() if callable(self.kinds) else self.kinds
        required = list(kinds) if self.whole else []

        def check(value: Any) -> Any:
            if isinstance(value, dict):
                _check_keys(value, value if self.others else list(kinds), required)
                if len(value) < self.fewest:
                    raise PydanticCustomError("too_few_keys", "keys", {"fewest": self.fewest})
            return value

        typed = {
            key: core_schema.typed_dict_field(
                handler.generate_schema(kind), required=key in required
            )
            for key, kind in kinds.items()
        }
        config = core_schema.CoreConfig(allow_inf_nan=False)  # that of the block is not inherited
        extra: Any = {"extra_behavior": "forbid"}
        if self.others:
            extra = {"extra_behavior": "allow", "extras_schema": handler(self.others)}
        made = core_schema.typed_dict_schema(typed, config=config, **extra)
        return core_schema.no_info_before_validator_function(check, made)


def kinds_of(block: type[Block], *keys: str) -> dict[str, Any]:
    """Return the types of a block's fields by key, of all or of some: what changes some of them has these."""
    hints, names = get_type_hints(block, include_extras=True), keys_of(block)
    texts = _descriptions(block)
    return {
        key: Annotated[hints[names[key]], Field(description=texts[names[key]])]
        for key in keys or names
    }


def _descriptions(block: type[Block]) -> dict[str, str]:
    """Return the strings below the fields of a block and of those that it is based on."""
    found: dict[str, str] = {}
    for kind in reversed(block.__mro__[: block.__mro__.index(Block)]):
        [made] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        for field, below in itertools.pairwise(cast(ast.ClassDef, made).body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema(block: type[Block]) -> dict[str, Any]:
    """Return the JSON schema of a file that has this block: descriptions, limits and defaults."""
    found: dict[str, Any] = _adapter(block).json_schema(schema_generator=_Schema)
    return found


def told(value: Any) -> Any:
    """Return what a file says of a block: keys that may be lacking, and have their default, are left out."""
    if isinstance(value, Block):
        kind: Any = type(value)
        unsaid = {key: _default(kind, key) for key in kind.may_lack}
        given = {key: getattr(value, name) for key, name in _in_files(kind).items()}
        return {k: told(v) for k, v in given.items() if k not in unsaid or v != unsaid[k]}
    if isinstance(value, Mapping):
        return {key: told(item) for key, item in value.items()}
    return list(map(told, value)) if isinstance(value, tuple) else value


def _default(kind: Any, key: str) -> Any:
    field = kind.__dataclass_fields__[keys_of(kind)[key]]
    return field.default if field.default_factory is MISSING else field.default_factory()


def checked(
    kind: type[T], value: Any, path: Path | str, *, strict: bool | None = None, context: Any = None
) -> T:
    """Return the block that a file says, or raise InputError for the first thing that is wrong; `path` is how it names the file."""
    try:
        return cast(T, _adapter(kind).validate_python(value, strict=strict, context=context))
    except ValidationError as error:
        raise InputError(f"{path}: {_explain(error.errors(include_url=False)[0], value)}") from None


def _names(loc: Iterable[Any], value: Any) -> Iterator[str]:
    """Yield what leads to a place: keys, and of lists an item's own name or its number."""
    for part in loc:
        if part in (A_LIST.tag, A_MAPPING.tag):
            continue
        # what is missing at the end of a list has a number, too
        is_item = isinstance(part, int) and isinstance(value, list | tuple) and part < len(value)
        value = value[part] if is_item else value.get(part) if isinstance(value, dict) else None
        named = is_item and isinstance(value, dict) and "name" in value
        yield str(value["name"] if named else part)


def _explain(error: Any, value: Any) -> str:
    names = [*_names(error["loc"], value)]
    kind, context = error["type"], error.get("ctx", {})
    pattern = context.get("pattern", "")
    match = _PATTERNS.get(pattern, f"a match of {pattern}")
    if kind in ("unknown_key", "missing_key"):
        full = ".".join([*names, context["key"]])
        if kind == "missing_key":
            return f"key '{full}' is missing"
        return f"unknown key '{full}': {hint(context['key'], context['known'])}"
    if kind == "missing":
        return f"key '{'.'.join(names)}' is missing"
    if names[-1:] == ["[key]"]:
        full = ".".join(names[:-1])
        return f"key '{full}' is not a valid name, expected {match}"
    expected = _EXPECTED.get(kind, "{message}").format(**context, message=error["msg"], match=match)
    if kind == "literal_error" and A_LIST.tag in error["loc"]:  # a word, or an object beside it
        expected = f"{context['expected']} or keys {{..}}"
    place = f"key '{'.'.join(names)}'" if names else "the top level"
    return f"{place} is {typed(error['input'])}, expected {expected}"


# by pydantic's type of error
_EXPECTED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "text",
    "tuple_type": "a list [..]",
    "dict_type": "keys {{..}}",
    "dataclass_type": "keys {{..}}",
    "literal_error": "one of {expected}",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "too_short": "at least {min_length} item",
    "too_few_keys": "at least {fewest} key",
    "string_pattern_mismatch": "{match}",
    "repeated": "each item once",
}
