"""What every environment's rows have in common, and how they are checked."""

import re
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Strict
from pydantic_core import PydanticCustomError

from rlvr_debug.blocks import checked
from rlvr_debug.errors import InputError


def _said(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("empty", "text")
    return text


# the type of a field that says something
Text = Annotated[str, Strict(), AfterValidator(_said)]


class Row:
    """A question with its answer: the base of an environment's frozen data class.

    `where` (file:line) begins every error. Types of blocks.py convert nothing, so that a row is taken as it is.
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
        """Return the row of these columns; others than the fields are left out. Raise InputError for a bad one."""
        row = checked(cls, columns, where)
        for key, value in row.to_json().items():
            _check_unicode(value, key, where)
        row.check(where)
        return row

    def check(self, where: str) -> None:
        """Raise InputError for what the types of the fields do not say."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _check_unicode(value: Any, key: str, where: str) -> None:
    """JSON can spell half a character, which no file can hold."""
    if isinstance(value, str):
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise InputError(f"{where}: key '{key}' has a lone surrogate; make it valid Unicode")
    elif isinstance(value, tuple | dict):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check_unicode(inner, f"{key}.{part}", where)
