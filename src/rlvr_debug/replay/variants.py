"""Other implementations of a segment, by the causes that they belong to: `replay.yaml` in a cause's folder."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_type_hints

from rlvr_debug.blocks import Entry, Keyed, checked
from rlvr_debug.causes import REPLAY, file_of, hypothesis_names
from rlvr_debug.errors import InputError, hint
from rlvr_debug.files import read_yaml


@dataclass(frozen=True)
class Variant(Entry):
    """What another implementation of the segment does.

    near: it is nearest to this cause, and not what the cause claims. next: what to do about it, where the segment's own
    advice (next.yaml) does not fit. cause, number: whose file lists it, and where.
    """

    elsewhere: ClassVar = ("cause", "number")

    segment: str
    name: str
    knobs: Mapping[str, Any]
    near: bool = False
    next: str = ""
    cause: str = ""
    number: int = 0

    @property
    def fitted(self) -> bool:
        """Whether a number of it is fitted to what was recorded."""
        return bool({"fitted", "factor"} & self.knobs.keys())


@dataclass(frozen=True)
class _Replay(Entry):
    """A replay.yaml: where the check of a trainer shows a cause, and what names it (docs/extend.md).

    segments: any deviation of these is what the cause claims. near: one that nothing known gives is only nearest to it.
    """

    segments: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()


@cache
def _replays() -> Mapping[str, _Replay]:
    paths = {slug: file_of(slug).with_name(REPLAY) for slug in hypothesis_names()}
    return {s: checked(_Replay, read_yaml(p), p) for s, p in paths.items() if p.is_file()}


def variants_of(segment: str) -> tuple[Variant, ...]:
    return tuple(
        replace(listed, cause=slug, number=number)
        for slug, replay in _replays().items()
        for number, listed in enumerate(replay.variants)
        if listed.segment == segment
    )


def causes_of(segment: str) -> tuple[str, ...]:
    """Return the slugs of the causes that a deviation of this segment speaks for: those that list it first."""
    listed = sorted(
        ((*replay.segments, *replay.near).index(segment), slug)
        for slug, replay in _replays().items()
        if segment in (*replay.segments, *replay.near)
    )
    by_variant = [slug for slug in _replays() if segment in segments_for(slug)]
    return tuple(dict.fromkeys([*(slug for _, slug in listed), *by_variant]))


def segments_for(slug: str) -> tuple[str, ...]:
    """Return the segments that a cause's mechanism shows in: those that it lists, and those of its variants."""
    replay = _replays().get(slug, _Replay())
    by_variant = (variant.segment for variant in replay.variants)
    return tuple(dict.fromkeys([*replay.segments, *replay.near, *by_variant]))


def claims(slug: str, segment: str) -> bool:
    """Return whether the cause is the first that a deviation of the segment speaks for, and claims it, whatever it is."""
    return causes_of(segment)[:1] == (slug,) and segment in _replays()[slug].segments


def is_near(segment: str, name: str, slug: str) -> bool:
    """Return whether what gives the deviation, one variant or two, is only near to what the cause claims."""
    near = (v.name for v in variants_of(segment) if v.cause == slug and v.near)
    return any(name == each or name.startswith(f"{each} and ") for each in near)


@cache
def _advice() -> Mapping[str, str]:
    found: Mapping[str, str] = read_yaml(Path(__file__).with_name("next.yaml"))
    return found


def next_for(segment: str, name: str = "") -> str:
    """Return what to do about a deviation of the segment that the variant of this name gives, or that none gives."""
    own = (variant.next for variant in variants_of(segment) if name and variant.name == name)
    return next(filter(None, own), _advice()[segment])


def consequences_for(slug: str) -> tuple[str, ...]:
    return _replays().get(slug, _Replay()).consequences


def check_names(segments: Collection[str], consequences: Collection[str]) -> None:
    """Raise InputError, one line, where a cause's file names a segment or a consequence that does not exist."""
    for slug in _replays():
        path = file_of(slug).with_name(REPLAY)
        asked = [("segment", name, segments) for name in segments_for(slug)]
        asked += [("consequence", name, consequences) for name in consequences_for(slug)]
        for kind, name, known in asked:
            if name not in known:
                raise InputError(f"{path}: unknown {kind} '{name}': {hint(name, known)}")


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
    import yaml

    path = file_of(variant.cause).with_name(REPLAY)
    root: Any = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
    [each] = (node for key, node in root.value if key.value == "variants")
    return f"{path}:{each.value[variant.number].start_mark.line + 1}"
