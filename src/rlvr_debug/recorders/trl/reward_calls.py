"""Reward functions, watched: what they were given and returned, and what they say when they are called again.

They are called again when the recorded steps are over, with the random numbers of Python, NumPy and torch put back,
so that the recorded run is the one that it would be without it.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rlvr_debug.recorders.trl.first_releases import at_once
from rlvr_debug.recorders.trl.seams import Seams
from rlvr_debug.replay.record import Record, RewardCall

__all__ = ["RewardWatch", "calls_functions"]

# the first of these that a release has calls reward functions
_CALLERS = ("_calculate_rewards", "_generate_and_score_completions", "_prepare_inputs")

# not of the rows: the trainer's state, and its ways to log
_OTHERS = ("trainer_state", "log_extra", "log_metric", "environments")
_GENERATIONS = 2  # whose rewards are called again


@dataclass(frozen=True)
class _Again:
    """How a call is repeated: the function, and what it was given that is not of the rows."""

    function: Callable[..., Any]
    rest: Mapping[str, Any]


def calls_functions(trainer: Any) -> tuple[type, str]:
    """Return the release's own method that calls reward functions: its class and its name."""
    callers = ("compute_loss",) if at_once(trainer) else _CALLERS
    name = next(name for name in callers if hasattr(trainer, name))
    owners = [kind for kind in type(trainer).__mro__ if name in vars(kind)]
    own = [kind for kind in owners if not kind.__module__.startswith("transformers.")]
    return (own or owners)[-1], name


class RewardWatch:
    """Collects the calls of a generation. again: whether functions are called again at the end."""

    def __init__(self, seams: Seams, *, again: bool) -> None:
        self._seams, self._again = seams, again
        self._how: dict[int, _Again] = {}
        self.calls: list[RewardCall] = []

    def begin(self) -> None:
        """Begin a generation."""
        self.calls = []

    def watched(self, functions: Sequence[Any], restore: Callable[[], None]) -> list[Any]:
        """Return the same functions, watched; a reward model is left as it is. restore: is called before any of them."""
        return [
            function
            if isinstance(function, torch.nn.Module) or not callable(function)
            else self._watched(function, index, restore)
            for index, function in enumerate(functions)
        ]

    def _watched(
        self, function: Callable[..., Any], index: int, restore: Callable[[], None]
    ) -> Callable[..., Any]:
        def begun(named: Mapping[str, Any]) -> Any:
            restore()
            return self._seams.safely("rewards", _copied, named)

        def note(copied: Any, returned: Any) -> None:
            if copied is not None:
                self._seams.safely("rewards", self._note, function, index, copied, returned)

        @functools.wraps(function)
        async def waiting(*given: Any, **named: Any) -> Any:
            copied = begun(named)
            returned = await function(*given, **named)
            note(copied, returned)
            return returned

        @functools.wraps(function)
        def watching(*given: Any, **named: Any) -> Any:
            copied = begun(named)
            returned = function(*given, **named)
            note(copied, returned)
            return returned

        return waiting if _is_async(function) else watching

    def _note(
        self,
        function: Callable[..., Any],
        index: int,
        copied: tuple[Mapping[str, Any], Mapping[str, Any]],
        returned: Any,
    ) -> None:
        columns, rest = copied
        name = getattr(function, "__name__", type(function).__name__)
        call = RewardCall(name, index, columns, _numbers(returned))
        self.calls.append(call)
        self._how[id(call)] = _Again(function, rest)

    def finish(self, record: Record) -> None:
        """Call the functions of the first generations again, and put what they say into the record."""
        if not self._again:
            record.notes.append("reward functions were not called again")
            return
        for generation in record.generations[:_GENERATIONS]:
            with _same_numbers():
                generation.reward_calls = [
                    self._repeated(call, record) for call in generation.reward_calls
                ]

    def _repeated(self, call: RewardCall, record: Record) -> RewardCall:
        how = self._how[id(call)]
        if "environments" in how.rest:
            record.notes.append(f"{call.name} reads its environments and was not called again")
            return call
        count = len(call.returned)

        def said(rows: Sequence[int]) -> list[float]:
            columns = {
                name: [copy.deepcopy(values[row]) for row in rows]
                if len(values) == count
                else copy.deepcopy(values)
                for name, values in call.columns.items()
            }
            out = how.function(**columns, **how.rest)
            return _numbers(asyncio.run(out) if inspect.iscoroutine(out) else out)

        forth = range(count)
        try:
            return replace(
                call,
                again=said(forth),
                backwards=said(forth[::-1])[::-1],
                alone=[said([row])[0] for row in forth],
            )
        except Exception as error:  # the user's: it worked for the batch, and is no finding
            record.notes.append(
                f"{call.name} could not be called again: {type(error).__name__}: {error}"
            )
            return call


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether the release waits for what the function returns."""
    from trl.trainer import utils

    told = getattr(utils, "is_async_callable", inspect.iscoroutinefunction)
    return bool(told(function))


def _copied(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    columns, rest = {}, {}
    for name, value in named.items():
        if name in _OTHERS:
            rest[name] = copy.copy(value) if name == "trainer_state" else value
            continue
        try:
            columns[name] = copy.deepcopy(value)
        except Exception:  # a handle of the user's
            rest[name] = value
    if "log_extra" in rest:
        rest["log_extra"] = _ignore
    if "log_metric" in rest:
        rest["log_metric"] = _ignore
    return columns, rest


def _ignore(*_: Any, **__: Any) -> None:
    """Log nothing: the call is a repetition."""


def _numbers(returned: Any) -> list[float]:
    return [math.nan if value is None else float(value) for value in returned]


@contextmanager
def _same_numbers() -> Iterator[None]:
    """Put the states of the random generators back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' functions draw from it
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
