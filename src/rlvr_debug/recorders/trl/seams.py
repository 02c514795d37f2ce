"""Hooks around what a training calls: whatever fails in one of them changes nothing of the training and does not end it."""

import functools
import logging
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MethodType
from typing import Any

from rlvr_debug.errors import reason
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.segments import SEGMENTS

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
Watching = Generator[None, Any, Any]
Hook = Callable[..., Watching]


class Seams:
    """Puts hooks in place and takes them away again. failed: what could not be recorded, and why. beat: is told of each call."""

    def __init__(self, beat: Callable[[str], None] = lambda _: None) -> None:
        self.beat = beat
        self.failed: dict[str, str] = {}
        hooks = ExitStack()
        self.undone_by, self.undo = hooks.callback, hooks.close

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
        return functools.partial(self.safely, what, function)

    def around(self, what: str, place: Any, name: str, hook: Hook) -> None:
        """Put a hook around a method of an object, or of a class, which stays a method."""
        inner, own = getattr(place, name), name in vars(place)
        bound = isinstance(inner, MethodType)
        function = inner.__func__ if bound else inner

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            self.beat(what)
            with self._watching(what, hook, given[bound:], named) as out:
                out.append(function(*given, **named))
            self.beat(what)
            return out[0]

        setattr(place, name, MethodType(call, inner.__self__) if bound else call)
        self.undone_by(*((setattr, place, name, inner) if own else (delattr, place, name)))

    def watched(self, what: str, function: Any, hook: Hook, *, waits: bool = False) -> Any:
        """Return a function with a hook around it. waits: what it returns is awaited."""

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            with self._watching(what, hook, given, named) as out:
                out.append(function(*given, **named))
            return out[0]

        @functools.wraps(function)
        async def waiting(*given: Any, **named: Any) -> Any:
            with self._watching(what, hook, given, named) as out:
                out.append(await function(*given, **named))
            return out[0]

        return waiting if waits else call

    @contextmanager
    def _watching(
        self, what: str, hook: Hook, given: Sequence[Any], named: Mapping[str, Any]
    ) -> Iterator[list[Any]]:
        """Run a hook around a call, which puts what it returns into a list."""
        seen, out = self.safely(what, _begun, hook, given, named), list[Any]()
        try:
            yield out
        except BaseException:
            if seen is not None:
                self.safely(what, seen.close)
            raise
        if seen is not None:
            self.safely(what, _ended, seen, out[0])

    @contextmanager
    def standing_in(
        self, place: Any, name: str, make: Callable[[Any, Callable[[], None]], Any]
    ) -> Iterator[None]:
        """Have something stand for an attribute. make: of that one, and of what puts it back."""
        inner = getattr(place, name)

        def restore() -> None:
            setattr(place, name, inner)

        setattr(place, name, make(inner, restore))
        try:
            yield
        finally:
            restore()


def _begun(hook: Hook, given: Sequence[Any], named: Mapping[str, Any]) -> Watching | None:
    seen = hook(*given, **named)
    try:
        next(seen)
    except StopIteration:  # it has no interest in this call
        return None
    return seen


def _ended(seen: Watching, out: Any) -> None:
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
