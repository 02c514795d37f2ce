"""Other implementations of a segment, by the causes that they belong to: `replay.yaml` in a cause's folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

from rlvr_debug.blocks import Entry, Keyed, checked
from rlvr_debug.causes import REPLAY, file_of, hypothesis_names
from rlvr_debug.errors import InputError, hint
from rlvr_debug.files import read_yaml


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


@dataclass(frozen=True)
class _Listed(Entry):
    """A variant in its cause's file, where the keys of its segment's knobs are not known yet."""

    segment: str
    name: str
    knobs: Mapping[str, Any]


@dataclass(frozen=True)
class _Replay(Entry):
    """A replay.yaml: where the check of a trainer shows a cause, and what names it (docs/extend.md)."""

    segments: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    variants: tuple[_Listed, ...] = ()


@cache
def _replays() -> Mapping[str, _Replay]:
    """Return what the causes' files say, by slug."""
    paths = {slug: file_of(slug).with_name(REPLAY) for slug in hypothesis_names()}
    return {s: checked(_Replay, read_yaml(p), p) for s, p in paths.items() if p.is_file()}


def variants_of(segment: str) -> tuple[Variant, ...]:
    """Return the variants of this segment, in the order of their causes' slugs."""
    return tuple(
        Variant(segment, listed.name, slug, listed.knobs, number)
        for slug, replay in _replays().items()
        for number, listed in enumerate(replay.variants)
        if listed.segment == segment
    )


def causes_of(segment: str) -> tuple[str, ...]:
    """Return the slugs of the causes that a deviation of this segment speaks for, the nearest first.

    Those that list it come before those that only have a variant of it.
    """
    listed = sorted(
        (replay.segments.index(segment), slug)
        for slug, replay in _replays().items()
        if segment in replay.segments
    )
    by_variant = [slug for slug in _replays() if segment in segments_for(slug)]
    return tuple(dict.fromkeys([*(slug for _, slug in listed), *by_variant]))


def segments_for(slug: str) -> tuple[str, ...]:
    """Return the segments that a cause's mechanism shows in: those that it lists, and those of its variants."""
    replay = _replays().get(slug, _Replay())
    return tuple(dict.fromkeys([*replay.segments, *(v.segment for v in replay.variants)]))


def consequences_for(slug: str) -> tuple[str, ...]:
    """Return the consequences that a cause's mechanism shows in."""
    return _replays().get(slug, _Replay()).consequences


def check_names(segments: Collection[str], consequences: Collection[str]) -> None:
    """Raise InputError, one line, where a cause's file names a segment or a consequence that does not exist."""
    for slug in _replays():
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
