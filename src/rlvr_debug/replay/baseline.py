"""A check's answer held to an earlier one: which segments deviate that did not, in words and as annotations of a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlvr_debug.errors import InputError, typed
from rlvr_debug.files import read_json
from rlvr_debug.replay.answer import deviation_text, later_text
from rlvr_debug.replay.finding import DEVIATES, NOT_SEEN, STATUSES

__all__ = ["Against", "against", "against_text", "annotation_lines", "read_baseline"]

Answer = Mapping[str, Any]
_TITLE = "rlvr-debug check"


@dataclass(frozen=True)
class Against:
    """Segments by name, in the order of a step.

    new: deviate, and did not. still: deviate, and did. mended: did, and agree or have none of it now. unseen: were
    seen, and are not any more.
    """

    new: tuple[str, ...]
    still: tuple[str, ...]
    mended: tuple[str, ...]
    unseen: tuple[str, ...]

    def to_json(self) -> dict[str, list[str]]:
        return {name: list(segments) for name, segments in asdict(self).items()}


def read_baseline(path: Path) -> dict[str, str]:
    """Return each segment's status in a file that `rlvr-debug check --json` wrote. Raise InputError for any other."""
    told = read_json(path)
    segments = told.get("segments") if isinstance(told, dict) else None
    if not isinstance(segments, list) or not segments:
        has = typed(told if not isinstance(told, dict) else list(told))
        raise InputError(
            f"{path}: found {has}, expected 'segments', as `rlvr-debug check --json` writes them"
        )
    try:
        found = {str(each["segment"]): each["status"] for each in segments}
    except (KeyError, TypeError):
        raise InputError(
            f"{path}: key 'segments' is not as `rlvr-debug check --json` writes it, "
            "expected a list with 'segment' and 'status'"
        ) from None
    for name, status in found.items():
        if status not in STATUSES:
            raise InputError(
                f"{path}: key 'status' of {name}: found {typed(status)}, expected {', '.join(STATUSES)}"
            )
    return found


def against(answer: Answer, before: Mapping[str, str]) -> Against:
    """Hold an answer to the statuses of an earlier one. A segment that was not there did not deviate."""
    now = {each["segment"]: each["status"] for each in answer["segments"]}
    bad = [name for name, status in now.items() if status == DEVIATES]
    missing = [name for name, status in now.items() if status == NOT_SEEN]
    seen = {name for name, status in before.items() if status != NOT_SEEN}
    gone = {*bad, *missing}
    return Against(
        new=tuple(name for name in bad if before.get(name) != DEVIATES),
        still=tuple(name for name in bad if before.get(name) == DEVIATES),
        mended=tuple(name for name in now if before.get(name) == DEVIATES and name not in gone),
        unseen=tuple(name for name in missing if name in seen),
    )


def against_text(found: Against, path: Path) -> str:
    """Return what changed since the baseline, as a line."""
    parts = [
        f"deviates and did not: {', '.join(found.new)}"
        if found.new
        else "nothing deviates that did not"
    ]
    parts += [f"still deviates: {', '.join(found.still)}"] if found.still else []
    parts += [f"mended: {', '.join(found.mended)}"] if found.mended else []
    parts += [f"not seen any more: {', '.join(found.unseen)}"] if found.unseen else []
    return f"Against {path}: {'; '.join(parts)}."


def annotation_lines(answer: Answer, found: Against, script: str | None) -> Iterator[str]:
    """Yield GitHub's workflow commands: an error for the first new deviation, a warning for what is not seen any more."""
    told = {each["segment"]: each for each in answer["segments"]}
    if found.new:
        first, *others = found.new
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
