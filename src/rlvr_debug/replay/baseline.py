"""A check's answer held to an earlier one: what deviates and did not, or otherwise, in words and as annotations of a change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvr_debug.blocks import checked
from rlvr_debug.errors import InputError, typed
from rlvr_debug.files import read_json
from rlvr_debug.replay.answer import deviation_text, later_text
from rlvr_debug.replay.finding import DEVIATES, FAILED, NOT_SEEN

Answer = Mapping[str, Any]
_TITLE = "rlvr-debug check"
_MEASURES = ("deviation", "total", "ratio")
# relative. On another processor sums are rounded otherwise, which training then multiplies: see docs/check.md
_NOISE = 1e-3


@dataclass(frozen=True)
class Before:
    """What an earlier answer says of a segment: see Finding. None: infinite, or no number."""

    segment: str
    status: Literal["agrees", "deviates", "not seen", "none", "could not be computed"]
    share: float | None = None
    deviation: float | None = None
    total: float | None = None
    ratio: float | None = None
    names: tuple[Mapping[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class _Answer:
    segments: tuple[Before, ...]


@dataclass(frozen=True)
class Against:
    """Segments by name, in the order of a step.

    new: deviate, and did not. otherwise: deviate by another measure than they did. still: deviate as they did. mended:
    did, and agree or have none of it now. unseen: were seen, and are not any more, or could not be computed.
    """

    new: tuple[str, ...]
    otherwise: tuple[str, ...]
    still: tuple[str, ...]
    mended: tuple[str, ...]
    unseen: tuple[str, ...]

    @property
    def fails(self) -> bool:
        return bool(self.new or self.otherwise)


def read_baseline(path: Path) -> dict[str, Before]:
    """Return the segments of a file that `rlvr-debug check --json-out` wrote. Raise InputError for any other."""
    told = read_json(path)
    segments = told.get("segments") if isinstance(told, dict) else None
    if not isinstance(segments, list) or not segments:
        has = typed(told if not isinstance(told, dict) else list(told))
        as_written = "as `rlvr-debug check --json-out` writes them"
        raise InputError(f"{path}: not a baseline: found {has}, expected 'segments', {as_written}")
    found = checked(_Answer, told, path).segments
    for number, each in enumerate(segments):
        if each["status"] == DEVIATES and "total" not in each:
            raise InputError(
                f"{path}: key 'segments.{number}.total' is missing, the file is of an earlier version: "
                "write it again with `rlvr-debug check --json-out`"
            )
    return {each.segment: each for each in found}


def against(answer: Answer, before: Mapping[str, Before]) -> Against:
    """Hold an answer to the segments of an earlier one. A segment that was not there did not deviate."""
    now = {each["segment"]: each for each in answer["segments"]}
    unseen = (NOT_SEEN, FAILED)
    bad = [name for name, each in now.items() if each["status"] == DEVIATES]
    missing = [name for name, each in now.items() if each["status"] in unseen]
    known = [name for name, each in before.items() if each.status == DEVIATES]
    seen = [name for name, each in before.items() if each.status not in unseen]
    changed = [name for name in bad if name in known and _differs(now[name], before[name])]
    return Against(
        new=tuple(name for name in bad if name not in known),
        otherwise=tuple(changed),
        still=tuple(name for name in bad if name in known and name not in changed),
        mended=tuple(name for name in now if name in known and name not in {*bad, *missing}),
        unseen=tuple(name for name in missing if name in seen),
    )


def _differs(now: Mapping[str, Any], before: Before) -> bool:
    """Return whether a segment deviates by more, by less or in another direction than it did.

    A number may differ by one tolerance, which is the deviation over its share; what is said in words has to be the same.
    """
    pairs = [(name, now[name], getattr(before, name)) for name in _MEASURES]
    if now["share"] is None and now["ratio"] is None:
        names, known = ([each["name"] for each in told] for told in (now["names"], before.names))
        words = (now["note"], names) == (before.note, known)
        return not words or any(one != other for _, one, other in pairs)
    share = min(x for x in (now["share"], before.share, 1 / _NOISE) if x)

    def same(name: str, one: float | None, other: float | None) -> bool:
        if one is None or other is None:
            return one is other
        # a ratio near 0 is as uncertain as one near 1
        return abs(one - other) <= max(abs(one), abs(other), float(name == "ratio")) / share

    return not all(same(*each) for each in pairs)


def against_text(found: Against, path: Path) -> str:
    """Return what changed since the baseline, as a line."""
    parts = [] if found.new else ["no new deviation"]
    said = {
        "new deviations": found.new,
        "changed deviations": found.otherwise,
        "still deviates": found.still,
        "fixed": found.mended,
        "not seen any more": found.unseen,
    }
    parts += [f"{what}: {', '.join(names)}" for what, names in said.items() if names]
    return f"Against {path}: {'; '.join(parts)}."


def annotation_lines(answer: Answer, found: Against, script: str | None) -> Iterator[str]:
    """Yield GitHub's workflow commands: an error for the first new deviation, a warning for what is not seen any more."""
    told = {each["segment"]: each for each in answer["segments"]}
    worse = [name for name in told if name in (*found.new, *found.otherwise)]
    if worse:
        first, *others = worse
        said = [deviation_text(told[first]), *([later_text(others)] if others else [])]
        yield _command("error", " ".join(said), script)
    for name in found.unseen:
        yield _command("warning", f"{name} is not seen any more: {told[name]['note']}.", script)


def _command(kind: str, said: str, script: str | None) -> str:
    place = "" if script is None else f"file={_escaped(script, ',:')},"
    return f"::{kind} {place}title={_TITLE}::{_escaped(said)}"


def _escaped(text: str, more: str = "") -> str:
    """Return text as a workflow command takes it: no line break ends it, and no sign within a property."""
    text = text.replace("%", "%25")
    for sign in f"\r\n{more}":
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text
