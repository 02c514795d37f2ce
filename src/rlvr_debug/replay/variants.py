"""Other implementations of a segment, by the causes that they belong to: `replay.yaml` in a cause's folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from rlvr_debug.blocks import Keyed, checked
from rlvr_debug.causes import REPLAY, file_of, hypothesis_names
from rlvr_debug.errors import InputError, hint
from rlvr_debug.files import read_yaml
from rlvr_debug.schemas import check_schema, validator_of

__all__ = [
    "Variant",
    "causes_of",
    "check_knobs",
    "check_names",
    "consequences_for",
    "knobs_of",
    "place_of",
    "segments_for",
    "variants_of",
]

_SCHEMA = Path(__file__).parent / "replay.schema.yaml"


@dataclass(frozen=True)
class Variant:
    """What another implementation of the segment does: `knobs` of the segment's reference, by name.

    number: its place among the variants of its cause.
    """

    segment: str
    name: str
    cause: str
    knobs: Mapping[str, Any]
    number: int = 0

    @property
    def fitted(self) -> bool:
        """Whether a number of it is fitted to what was recorded."""
        return bool({"fitted", "factor"} & self.knobs.keys())


@cache
def _told() -> Mapping[str, Mapping[str, Any]]:
    """Return what the causes' files say, by slug."""
    found = {}
    for slug in hypothesis_names():
        path = file_of(slug).with_name(REPLAY)
        if path.is_file():
            found[slug] = read_yaml(path)
            check_schema(found[slug], validator_of(_SCHEMA), path)
    return found


def variants_of(segment: str) -> tuple[Variant, ...]:
    """Return the variants of this segment, in the order of their causes' slugs."""
    return tuple(
        Variant(segment, each["name"], slug, each["knobs"], number)
        for slug, told in _told().items()
        for number, each in enumerate(told.get("variants", ()))
        if each["segment"] == segment
    )


def causes_of(segment: str) -> tuple[str, ...]:
    """Return the slugs of the causes that a deviation of this segment speaks for, the nearest first.

    Those that list it come before those that only have a variant of it.
    """
    listed = sorted(
        (told["segments"].index(segment), slug)
        for slug, told in _told().items()
        if segment in told.get("segments", ())
    )
    by_variant = [slug for slug in _told() if segment in segments_for(slug)]
    return tuple(dict.fromkeys([*(slug for _, slug in listed), *by_variant]))


def segments_for(slug: str) -> tuple[str, ...]:
    """Return the segments that a cause's mechanism shows in: those that it lists, and those of its variants."""
    told = _told().get(slug, {})
    named = (each["segment"] for each in told.get("variants", ()))
    return tuple(dict.fromkeys([*told.get("segments", ()), *named]))


def consequences_for(slug: str) -> tuple[str, ...]:
    """Return the consequences that a cause's mechanism shows in."""
    return tuple(_told().get(slug, {}).get("consequences", ()))


def check_names(segments: Collection[str], consequences: Collection[str]) -> None:
    """Raise InputError, one line, where a cause's file names a segment or a consequence that does not exist."""
    for slug in _told():
        path = file_of(slug).with_name(REPLAY)
        asked = [("segment", name, segments) for name in segments_for(slug)]
        asked += [("consequence", name, consequences) for name in consequences_for(slug)]
        for kind, name, known in asked:
            if name not in known:
                raise InputError(f"{path}: no {kind} '{name}': {hint(name, known)}")


def knobs_of(*sources: Callable[..., Any]) -> Keyed:
    """Return the types of knobs by name: those of keyword-only parameters of functions, and fields of data classes."""
    found: dict[str, Any] = {}
    for source in sources:
        hints = get_type_hints(source, include_extras=True)
        for name, parameter in inspect.signature(source).parameters.items():
            if isinstance(source, type) or parameter.kind is parameter.KEYWORD_ONLY:
                found.setdefault(name, hints[name])
    return Keyed(found)


def check_knobs(segment: str, knobs: Keyed) -> None:
    """Raise InputError, one line, for the first variant that says what is no knob of the segment, or no value of it."""
    kind: Any = Annotated[dict[str, Any], knobs]
    for variant in variants_of(segment):
        try:
            checked(kind, variant.knobs, "", strict=True)
        except InputError as error:
            raise InputError(f"{place_of(variant)}{error}") from None


def place_of(variant: Variant) -> str:
    """Return the file and the line of a variant."""
    import yaml

    path = file_of(variant.cause).with_name(REPLAY)
    root: Any = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    [each] = (node for key, node in root.value if key.value == "variants")
    return f"{path}:{each.value[variant.number].start_mark.line + 1}"
