"""Hooks around what a training calls: whatever fails in one of them changes nothing of the training and does not end it."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MethodType
from typing import Any

from rlvr_debug.errors import reason
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments import SEGMENTS

__all__ = ["Hook", "Seams", "leave_out", "warn"]

_PACKAGE = Path(__file__).parents[2]
_LOGGER = logging.getLogger("rlvr_debug")  # a warning of `warnings` may be made an error

_ALL = "all"
# by what hooks record: the segments that read it, or the parts of a record that they are of
_READ_BY: Mapping[str, tuple[str, ...]] = {
    "weights": (_ALL,),
    "generations": ("rows", "calls of the sampler", "rollouts", "micro-batches"),
    "samples": ("calls of the sampler", "rewards"),
    "rewards": ("rewards", "advantages"),
    "losses": ("micro-batches",),
    "log-probabilities": ("policy log-probabilities", "loss", "gradient"),
    "forward passes": ("model inputs", "policy log-probabilities", "gradient"),
    "gradients": ("loss", "gradient", "clip"),
    "optimizer's steps": ("updates", "saved weights"),
    "updates": ("updates", "micro-batches"),
    "saved weights": ("saved weights",),
    "the check": (),
}

# Before its `yield` a hook runs ahead of the call that it is around; what the call returns is sent to it.
Hook = Callable[..., Generator[None, Any, Any]]


class Seams:
    """Puts hooks in place and takes them away again.

    failed: by the name of what a hook records, why that could not be recorded. beat: is told of each call.
    """

    def __init__(self, beat: Callable[[str], None] = lambda _: None) -> None:
        self.beat = beat
        self.failed: dict[str, str] = {}
        self._undo: list[Callable[[], Any]] = []

    def safely(self, what: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what a function returns, None where it fails: that is said once. what: it records."""
        try:
            return function(*given, **named)
        except Exception as error:  # ours, or of an object of the user's that is copied
            why = _where(error)
            if not self.failed:
                warn(f"{what} could not be recorded, and the training goes on: {why}")
            self.failed.setdefault(what, why)
            return None

    def guarded(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, called safely."""
        return functools.partial(self.safely, what, function)

    def around(self, what: str, place: Any, name: str, hook: Hook) -> None:
        """Put a hook around a method of an object, or of a class, which stays a method."""
        inner, own = getattr(place, name), name in vars(place)
        bound = isinstance(inner, MethodType)
        function = inner.__func__ if bound else inner

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            self.beat(what)
            seen = self.safely(what, _begun, hook, given[bound:], named)
            try:
                out = function(*given, **named)
            except BaseException:
                if seen is not None:
                    self.safely(what, seen.close)
                raise
            if seen is not None:
                self.safely(what, _ended, seen, out)
            self.beat(what)
            return out

        setattr(place, name, MethodType(call, inner.__self__) if bound else call)
        self._undo.append(
            functools.partial(setattr, place, name, inner)
            if own
            else functools.partial(delattr, place, name)
        )

    def undone_by(self, undo: Callable[[], Any]) -> None:
        """Keep what takes something away again."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Take all away, the last one first."""
        while self._undo:
            self._undo.pop()()


def _begun(
    hook: Hook, given: Sequence[Any], named: Mapping[str, Any]
) -> Generator[None, Any, Any] | None:
    seen = hook(*given, **named)
    try:
        next(seen)
    except StopIteration:  # it has no interest in this call
        return None
    return seen


def _ended(seen: Generator[None, Any, Any], out: Any) -> None:
    with suppress(StopIteration):
        seen.send(out)


def _where(error: Exception) -> str:
    """Return where an error is from, in our own files where it went through them, and what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if _PACKAGE in Path(each.filename).parents]
    last = [each for each in own if each.filename != __file__][-1:] or frames[-1:]
    return ": ".join([*(f"{Path(f.filename).name}:{f.lineno}" for f in last), reason(error)])


def warn(text: str) -> None:
    """Say a line that is no error of the training's."""
    _LOGGER.warning("rlvr-debug: %s", text)


def leave_out(record: Record, failed: Mapping[str, str]) -> None:
    """Have the record say what could not be recorded, without the parts that may be half of it."""
    parts = {part for what in failed for part in _READ_BY[what]}
    for what, why in failed.items():
        for segment in SEGMENTS:
            if {segment.name, segment.of, _ALL} & {*_READ_BY[what]}:
                record.unseen = {segment.name: f"could not be recorded: {why}", **record.unseen}
    if "rollouts" in parts:
        record.generations.clear()
    for generation in record.generations if "calls of the sampler" in parts else ():
        generation.calls = []
    for update in record.updates if "micro-batches" in parts else ():
        update.micro_batches = []
