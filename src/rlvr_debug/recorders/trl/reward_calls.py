"""Reward functions, watched: what they were given and returned, and, when the recorded steps are over, what they say again."""

import asyncio
import copy
import inspect
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr_debug.recorders.trl.launched import Ranks
from rlvr_debug.recorders.trl.objects import at_once, owners_of
from rlvr_debug.recorders.trl.seams import Seams, Watching
from rlvr_debug.replay.record import Generation, Record, RewardCall

# methods that return the rewards, of ms-swift and of TRL; the first of all these that a release has calls the functions
REWARDED = ("_compute_rewards_per_func", "_calculate_rewards")
_CALLERS = (*REWARDED, "_generate_and_score_completions", "_prepare_inputs")

# not of the rows: the trainer's state, and its ways to log
_OTHERS = ("trainer_state", "log_extra", "log_metric", "environments")
_TEXTS = ("prompt", "completion", "completion_ids")
_GENERATIONS = 2  # whose rewards are called again
# columns, and where the own rows begin
_Whole = tuple[dict[str, Any], int]


def calls_functions(trainer: Any) -> tuple[type, str]:
    """Return the release's own method that calls reward functions: its class and its name."""
    callers = ("compute_loss",) if at_once(trainer) else _CALLERS
    name = next(name for name in callers if hasattr(trainer, name))
    return owners_of(trainer, name)[-1], name


class RewardWatch:
    """Collects the calls of a generation. again: whether functions are called again at the end. ranks: those that train together."""

    def __init__(self, seams: Seams, *, again: bool, ranks: Ranks | None = None) -> None:
        self._seams, self._again, self._ranks = seams, again, ranks
        # of each call the function, what it was given of the rows and otherwise, and by what a model rounds
        self._how: dict[int, tuple[Callable[..., Any], Mapping[str, Any], Any, float]] = {}
        self.calls: list[RewardCall] = []
        self.environments: list[bool] = []  # whether each is still as it was reset for its row
        # by generation, of methods that call the functions by themselves: these, and what they are given
        self._unwatched: dict[int, tuple[Sequence[Any], dict[str, Any]]] = {}

    def begin(self) -> None:
        self.calls, self.environments = [], []

    def scored(self, model: Any, index: int, tokenizer: Any, named: Any, scores: Tensor) -> None:
        """Take note of a call of a reward model. named: the tensors that it was given."""
        given = {name: [row.clone() for row in tensor.cpu()] for name, tensor in named.items()}
        whole = [torch.ones_like(ids) for ids in given["input_ids"]]
        pairs = zip(given["input_ids"], given.get("attention_mask", whole), strict=True)
        texts = [tokenizer.decode(ids[real.bool()].tolist()) for ids, real in pairs]
        name, columns = type(model).__name__, {"prompt and completion": texts}
        call = RewardCall(name, index, columns, scores.tolist(), in_training_mode=model.training)
        self.calls.append(call)
        rest = {"model": model, "device": scores.device}
        rounding = torch.finfo(scores.dtype).eps ** 0.5 * float(scores.abs().max())
        self._how[id(call)] = _scores, given, rest, rounding

    def watched(self, functions: Sequence[Any], restore: Callable[[], None]) -> list[Any]:
        """Return the same functions, watched; a reward model is as it is. restore: is called before any of them."""
        return [
            function
            if isinstance(function, torch.nn.Module) or not callable(function)
            else self._watched(function, index, restore)
            for index, function in enumerate(functions)
        ]

    def _watched(
        self, function: Callable[..., Any], index: int, restore: Callable[[], None]
    ) -> Any:
        def scoring(*given: Any, **named: Any) -> Watching:
            restore()
            columns, rest = _copied(function, given, named)
            returned = yield
            if self.environments and "environments" in rest:
                columns = {**columns, "environments": self.environments}
            name = getattr(function, "__name__", type(function).__name__)
            call = RewardCall(name, index, columns, _numbers(returned))
            self.calls.append(call)
            self._how[id(call)] = function, columns, rest, 0.0

        from trl.trainer import utils

        # whether the release waits for what the function returns
        is_async = getattr(utils, "is_async_callable", inspect.iscoroutinefunction)
        return self._seams.watched("rewards", function, scoring, waits=bool(is_async(function)))

    def unwatched(
        self, generation: int, functions: Sequence[Any], inputs: Sequence[Any], *texts: Any
    ) -> None:
        """Take note of what an override has to give the functions, which it calls by itself. texts: prompts, completions, ids."""
        given = dict(zip(("prompts", "completions", "completion_ids"), texts, strict=True))
        given |= {name: [row[name] for row in inputs] for name in inputs[0] if name not in _TEXTS}
        own = generation not in self._unwatched and all(map(inspect.isroutine, functions))
        self._unwatched[generation] = (functions, copy.deepcopy(given)) if own else ((), {})

    def keep(self, rows: Sequence[int], count: int) -> None:
        """Leave out what was said of rows that are not trained on. count: of rows before."""

        def kept(values: list[Any]) -> list[Any]:
            return [values[row] for row in rows] if len(values) == count else values

        for number, call in enumerate(self.calls):
            columns = {name: kept(values) for name, values in call.columns.items()}
            self.calls[number] = replace(call, columns=columns, returned=kept(call.returned))
            function, given, *others = self._how[id(call)]
            given = {name: kept(values) for name, values in given.items()}
            self._how[id(self.calls[number])] = (function, given, *others)

    def drawn(
        self, draws: Sequence[Sequence[RewardCall]], places: Sequence[tuple[int, int]]
    ) -> None:
        """Of rows that were drawn and scored several times, keep what was said of those that are trained on.

        draws: the calls of each; places: of each row, the draw and its row there.
        """
        first = places[0][0]
        # as it was called: what a function makes of the others of its batch stays so
        count = len(draws[first][0].returned) if draws[first] else 0
        if places == [(first, row) for row in range(count)]:
            self.calls = [*draws[first]]
            return
        self.calls = []
        for same in zip(*draws, strict=True):
            chosen = partial(_chosen, places, [len(call.returned) for call in same])
            hows = [self._how[id(call)] for call in same]
            function, given, *others = hows[0]
            columns = {n: chosen([call.columns[n] for call in same]) for n in same[0].columns}
            returned = chosen([call.returned for call in same])
            self.calls.append(replace(same[0], columns=columns, returned=returned))
            given = {name: chosen([how[1][name] for how in hows]) for name in given}
            self._how[id(self.calls[-1])] = (function, given, *others)

    def finish(self, record: Record) -> None:
        """Call the functions of the first generations again, and put what they say into the record."""
        if not self._again:
            record.notes.append("reward functions were not called again")
            return
        known = record.generations[:_GENERATIONS]
        with same_numbers():
            self._watch_later(known)
        calls = [call for each in known for call in each.reward_calls]
        wholes = self._of_all(calls)
        with same_numbers():
            pairs = zip(calls, wholes, strict=True)
            again = iter(self._by_others([self._repeated(c, record, w) for c, w in pairs], wholes))
        for generation in known:
            generation.reward_calls = [next(again) for _ in generation.reward_calls]

    def _watch_later(self, known: Sequence[Generation]) -> None:
        """Call functions that an override called by itself; these are its calls where it returned the same rewards, in any order."""
        calls = [self._would_say(*self._unwatched.get(n, ((), {}))) for n in range(len(known))]
        said = [[call.returned for call in each] for each in calls]
        parts = self._ranks.told("unwatched", said) if self._ranks else [said]
        for number, generation in enumerate(known):
            rows = [row for part in parts for row in zip(*part[number], strict=False)]
            if calls[number] and not generation.reward_calls and generation.rewards is not None:
                used = sorted(map(str, generation.rewards.float().tolist()))
                if used == sorted(map(str, torch.tensor(rows).float().tolist())):
                    generation.reward_calls = calls[number]

    def _would_say(self, functions: Sequence[Any], given: Mapping[str, Any]) -> list[RewardCall]:
        """Return calls of these functions; none where one does not work like this."""
        calls = []
        for index, function in enumerate(functions):
            try:
                out = function(**copy.deepcopy(given))
                returned = _numbers(asyncio.run(out) if inspect.iscoroutine(out) else out)
            except Exception:  # the user's: the override gives it something else
                return []
            calls.append(RewardCall(function.__name__, index, given, returned))
            self._how[id(calls[-1])] = function, given, {}, 0.0
        return calls

    def _by_others(
        self, calls: Sequence[RewardCall], wholes: Sequence[_Whole | None]
    ) -> list[RewardCall]:
        """Return the calls with what the next rank says of their rows: its functions may be others than this one's."""
        told = (
            self._ranks.told("together", [each.together for each in calls]) if self._ranks else []
        )
        said = told[(self._ranks.rank + 1) % len(told)] if self._ranks and told else ()
        found = []
        for n, (call, whole) in enumerate(zip(calls, wholes, strict=True)):
            values = (said[n] if n < len(said) else None) or call.together
            begin = whole[1] if whole else 0
            own = values and values[begin : begin + len(call.returned)]
            found.append(replace(call, together=own))
        return found

    def _of_all(self, calls: Sequence[RewardCall]) -> list[_Whole | None]:
        """Return for each call the rows of all ranks; None where there are no others, or that cannot be told them."""
        told = [[call.name, len(call.returned), _plain(self._how[id(call)][1])] for call in calls]
        parts = self._ranks.told("rewards", told) if self._ranks else []
        # each function is called on all ranks at once, as it may wait for the others
        names = [[[name, given is None] for name, _, given in part] for part in parts]
        if not parts or any(each != names[0] for each in names):
            return [None] * len(calls)
        rank = 0 if self._ranks is None else self._ranks.rank
        return [_joined([part[n] for part in parts], rank) for n in range(len(calls))]

    def _repeated(self, call: RewardCall, record: Record, whole: _Whole | None) -> RewardCall:
        function, given, rest, rounding = self._how[id(call)]
        if "environments" in rest:
            record.notes.append(f"{call.name} reads its environments and was not called again")
            return call
        count = len(call.returned)

        def asked(columns: Mapping[str, Any]) -> list[float]:
            out = function(**columns, **rest)
            return _numbers(asyncio.run(out) if inspect.iscoroutine(out) else out)

        def said(rows: Sequence[int]) -> list[float]:
            columns = {
                name: [copy.deepcopy(values[row]) for row in rows]
                if len(values) == count
                else copy.deepcopy(values)
                for name, values in given.items()
            }
            pairs = zip(asked(columns), (call.returned[row] for row in rows), strict=True)
            return [first if abs(value - first) <= rounding else value for value, first in pairs]

        forth = range(count)
        try:
            return replace(
                call,
                again=said(forth),
                backwards=said(forth[::-1])[::-1],
                alone=[said([row])[0] for row in forth],
                together=asked(whole[0]) if whole else None,
            )
        except Exception as error:  # the user's: it worked for the batch, and is no finding
            why = f"{type(error).__name__}: {error}"
            record.notes.append(f"{call.name} could not be called again: {why}")
            return call


def _chosen(
    places: Sequence[tuple[int, int]], counts: Sequence[int], parts: Sequence[Sequence[Any]]
) -> list[Any]:
    """Return of each row what its draw has; what is not by row is the first draw's. counts: of the draws' rows."""
    if any(len(values) != count for values, count in zip(parts, counts, strict=True)):
        return [*parts[0]]
    return [parts[number][row] for number, row in places]


def _plain(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a function was given, None where JSON cannot hold it."""
    try:
        json.dumps(given)
    except (TypeError, ValueError):
        return None
    return given


def _joined(parts: Sequence[tuple[str, int, dict[str, Any] | None]], rank: int) -> _Whole | None:
    """Return one call with the rows of all ranks. parts: of each its name, how many rows, and the columns."""
    columns = {}
    for name, values in (parts[rank][2] or {}).items():
        pairs = [((given or {}).get(name, ()), count) for _, count, given in parts]
        by_row = all(len(each) == count for each, count in pairs)
        columns[name] = [value for each, _ in pairs for value in each] if by_row else values
    return (columns, sum(count for _, count, _ in parts[:rank])) if columns else None


def _scores(model: Any, device: torch.device, **given: list[Tensor]) -> Tensor:
    """Return what a reward model says of rows, as TRL has it."""
    with torch.inference_mode():
        tensors = {name: torch.stack(rows).to(device) for name, rows in given.items()}
        scores: Tensor = model(**tensors).logits[:, 0]
    return scores


def _copied(
    function: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    columns, rest = {}, {}
    first = inspect.signature(function).bind_partial(*given).arguments if given else {}
    for name, value in {**first, **named}.items():
        if name in _OTHERS:
            rest[name] = copy.copy(value) if name == "trainer_state" else value
            continue
        try:
            columns[name] = copy.deepcopy(value)
        except Exception:  # a handle of the user's
            rest[name] = value
    # a repetition logs nothing
    logs = {"log_extra", "log_metric"} & rest.keys()
    return columns, rest | dict.fromkeys(logs, lambda *_, **__: None)


def _numbers(returned: Any) -> list[float]:
    return [math.nan if value is None else float(value) for value in returned]


@contextmanager
def same_numbers() -> Iterator[None]:
    """Put the states of the random generators back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' functions draw from it
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
