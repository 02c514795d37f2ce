"""Watches generation by transformers: what each call read, wrote and drew from, and the settings that it worked with."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin

from rlvr_debug.recorders.trl.settings import used_sampling
from rlvr_debug.replay.finding import seen
from rlvr_debug.replay.record import Batch, Call, Generation, MicroBatch, Record

_CERTAIN = 1e-3  # nats


@dataclass
class _Watch:
    """wanted: whether a call is one of the recorded steps. ends: tokens that end a reply. begin: is called before tokens are
    drawn, note: makes a call of what it is told; neither raises."""

    wanted: Callable[[], bool]
    ends: Sequence[int]
    begin: Callable[[], None]
    note: Callable[..., None]
    used: list[Any] = field(default_factory=list)
    inside: bool = False


_watches: list[_Watch] = []


def make_watchable() -> Callable[[], None]:
    """Have the class's methods look for a watch when they are called; return what undoes it.

    Made before a script takes hold of a method, it shows calls through that one too.
    """
    inner = GenerationMixin.generate
    prepare = getattr(GenerationMixin, "_prepare_generation_config", None)
    if hasattr(inner, "watchable"):
        return lambda: None

    @functools.wraps(inner)
    def generate(model: Any, *given: Any, **named: Any) -> Any:
        watch = next((each for each in _watches if each.wanted() and not each.inside), None)
        if watch is None:
            return inner(model, *given, **named)
        watch.used.clear()
        watch.begin()
        watch.inside = True
        try:
            out = inner(model, *given, **_with_scores(named))
        finally:
            watch.inside = False
        watch.note(_call, out, given, named, watch)
        # whether the caller is to have all that is made, and not tokens alone
        own, name = named.get("generation_config"), "return_dict_in_generate"
        config = getattr(model, "generation_config", None) if own is None else own
        whole = named.get(name, getattr(config, name, False))
        return out if whole else getattr(out, "sequences", out)

    def prepared(model: Any, *given: Any, **named: Any) -> Any:
        assert prepare is not None
        out = prepare(model, *given, **named)
        for watch in _watches:
            watch.used.append(out[0] if isinstance(out, tuple) else out)
        return out

    generate.watchable = True  # type: ignore[attr-defined]
    GenerationMixin.generate = generate
    if prepare is not None:
        GenerationMixin._prepare_generation_config = functools.wraps(prepare)(prepared)

    def restore() -> None:
        GenerationMixin.generate = inner
        if prepare is not None:
            GenerationMixin._prepare_generation_config = prepare

    return restore


def watch_generate(
    wanted: Callable[[], bool],
    ends: Sequence[int],
    begin: Callable[[], None],
    note: Callable[..., None],
) -> Callable[[], None]:
    """Watch generation, and return what ends that. The arguments are as in the watch."""
    restore, watch = make_watchable(), _Watch(wanted, ends, begin, note)
    _watches.append(watch)

    def end() -> None:
        _watches.remove(watch)
        restore()

    return end


def answered(prompts: Any, outputs: Any, logprobs: Any) -> Call:
    """Return an engine's answer as a call. logprobs: of each token a number, or several of which the first is its own."""
    values = [
        [value[0] if isinstance(value, Sequence) else value for value in row]
        for row in logprobs or ()
    ]
    known = all(value is not None for row in values for value in row)
    return Call([*map(list, prompts)], [*map(list, outputs)], values if known else [])


def _call(out: Any, given: tuple[Any, ...], named: Mapping[str, Any], watch: _Watch) -> Call:
    ids = named.get("input_ids", named.get("inputs", given[0] if given else None))
    mask = named.get("attention_mask")
    assert ids is not None
    mask = torch.ones_like(ids) if mask is None else mask
    new = out.sequences[:, ids.shape[1] :].cpu()
    # of each prompt, where the release has it sampled several times
    times = len(new) // len(ids)
    ids, mask = ids.repeat_interleave(times, 0), mask.repeat_interleave(times, 0)
    chosen = [
        scores.float().log_softmax(-1).cpu().gather(1, new[:, place : place + 1])
        for place, scores in enumerate(out.scores)
    ]
    logprobs = torch.cat(chosen, 1) if chosen else torch.zeros(len(new), 0)
    outputs, values = [], []
    for row, each in zip(new.tolist(), logprobs.tolist(), strict=True):
        stop = next((n + 1 for n, token in enumerate(row) if token in watch.ends), len(row))
        outputs.append(row[:stop])
        values.append(each[:stop])
    prompts = [row[real.bool()].tolist() for row, real in zip(ids.cpu(), mask.cpu(), strict=True)]
    sampling = used_sampling(watch.used[0]) if watch.used else None
    if sampling is not None and named.get("logits_processor"):
        own = [f"logits_processor {type(each).__name__}" for each in named["logits_processor"]]
        sampling = replace(sampling, others=tuple(sorted({*sampling.others, *own})))
    return Call(prompts, outputs, values, sampling)


def trained_calls(
    calls: list[Call], batch: Batch, scored: Sequence[Sequence[int]] = ()
) -> tuple[list[Call], int, list[int]]:
    """Return the calls with the first replies of all rows in one, in their order, and how many rollouts are none of them;
    also which rows of the only call that there is those are, [] where there are several.

    It takes several calls where a trainer samples a group in parts, or more than it trains on: each row's reply is the last
    one that its tokens begin with. A row without one that the loss does not count fills its group up. Where a row that counts
    has no reply, the calls are returned as they are. scored: the completions that were scored, in their order: a call that has
    them in another one is put into that of the batch, where the batch has it too.
    """
    rows = rows_in(batch)
    in_order = [completion for _, completion in rows] == [[*ids] for ids in scored]
    prompts = {tuple(prompt) for prompt, _ in rows}
    free = [
        (place, number)
        for place, call in enumerate(calls)
        for number, prompt in enumerate(call.prompts)
        if tuple(prompt) in prompts
    ]
    first = sorted({place for place, _ in free})
    if len(free) == len(rows) and first == [0] and not (in_order and _differs(calls[0], rows)):
        return calls, 0, []
    counts = batch.loss_mask.bool().any(1).tolist()
    chosen: list[tuple[int, int] | None] = []
    for row, counted in zip(rows, counts, strict=True):
        fitting = [
            (place, number)
            for place, number in free
            if calls[place].prompts[number] == row[0]
            and row[1][: len(output := calls[place].outputs[number])] == output
        ]
        if fitting:
            took = max(fitting, key=lambda each: len(calls[each[0]].outputs[each[1]]))
            free.remove(took)
            chosen.append(took)
        elif counted:
            return calls, 0, []
        else:
            chosen.append(None)
    used = [calls[place] for place in dict.fromkeys(took[0] for took in chosen if took)]
    if not used or any((c.used, c.weights) != (used[0].used, used[0].weights) for c in used):
        return calls, 0, []
    one = replace(
        used[0],
        prompts=[prompt for prompt, _ in rows],
        outputs=[calls[took[0]].outputs[took[1]] if took else [] for took in chosen],
        logprobs=[calls[took[0]].logprobs[took[1]] if took else [] for took in chosen]
        if all(call.logprobs for call in used)
        else [],
    )
    filled = [number for number, took in enumerate(chosen) if took is None]
    read = [rows[number][0] + rows[number][1] for number in filled]
    nothing: list[Any] = [[] for _ in filled]
    fillers = [replace(one, prompts=read, outputs=nothing, logprobs=nothing, rows=filled)]
    later = [call for place, call in enumerate(calls) if place > first[0] and place not in first]
    unused = len(free) + sum(len(c.prompts) for c in calls[: first[0]])
    rows_of_one = [took[1] for took in chosen if took] if len(calls) == 1 else []
    return [one, *fillers[: len(filled)], *later], unused, rows_of_one


def _differs(call: Call, rows: Sequence[tuple[list[int], list[int]]]) -> bool:
    """Return whether a call's rows are others than these, row by row."""
    pairs = zip(call.prompts, call.outputs, rows, strict=False)
    return any(prompt != row[0] or output != row[1] for prompt, output, row in pairs)


def in_sampled_order(record: Record) -> Record:
    """Return the record with each batch in the order in which its rows were sampled.

    A trainer may sort whole rows after they were scored, or deal them out to processes by their length.
    """
    orders = [_sampled_order(each) for each in record.generations]

    def followed(micro: MicroBatch) -> MicroBatch:
        order = orders[micro.generation] if micro.generation < len(orders) else None
        if order is None or micro.given.rows is None:
            return micro
        return replace(micro, given=replace(micro.given, rows=order.argsort()[micro.given.rows]))

    if all(order is None for order in orders):
        return record
    generations = [
        each if order is None else replace(each, batch=_reordered(seen(each.batch), order))
        for each, order in zip(record.generations, orders, strict=True)
    ]
    updates = [
        replace(each, micro_batches=[*map(followed, each.micro_batches)]) for each in record.updates
    ]
    return replace(record, generations=generations, updates=updates)


def _reordered(batch: Batch, order: Tensor) -> Batch:
    rows = None if batch.rows is None else torch.arange(len(order))
    return replace(batch.of_rows(order), rows=rows)


def _sampled_order(generation: Generation) -> Tensor | None:
    """Return where in the batch each sampled row stands, [B]; None where they stand in order, or the batch has other rows."""
    batch, calls = generation.batch, generation.calls
    if batch is None or not calls or not all(calls[0].outputs):
        return None
    held = rows_in(batch)
    places = calls[0].rows or [*range(len(calls[0].prompts))]
    if sorted(places) != [*range(len(held))]:
        return None
    left, order = {*range(len(held))}, [0] * len(held)
    for place, prompt, output in zip(places, calls[0].prompts, calls[0].outputs, strict=True):
        fits = [n for n in left if held[n][0] == prompt and held[n][1][: len(output)] == output]
        if not fits:
            return None
        order[place] = place if place in fits else min(fits, key=lambda n: (len(held[n][1]), n))
        left.remove(order[place])
    return None if order == sorted(order) else torch.tensor(order)


def rows_in(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Return the tokens of each row's prompt and completion, without padding."""
    return [
        (prompt[real.bool()].tolist(), completion[there.bool()].tolist())
        for prompt, real, completion, there in zip(
            *(batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.completion_mask),
            strict=True,
        )
    ]


def function_calls(
    told: Mapping[str, Any],
    calls: Sequence[Call],
    score: Callable[[list[int], int], list[float]],
    text: Callable[[list[int]], str],
) -> list[Call]:
    """Return what a rollout function returned as calls, one for each turn; [] where that cannot be told.

    The policy wrote what a call of the sampler wrote; else what has a log-probability that is not 0, or where `score` says 0.
    Where calls wrote the same `text` in other tokens, or no row has the end that they wrote, what they wrote is returned.
    """
    rows = [
        ([*map(int, p)], [*map(int, c)])
        for p, c in zip(told["prompt_ids"], told["completion_ids"], strict=True)
    ]
    logprobs = [
        [float(value[0] if isinstance(value, Sequence) else value) for value in row]
        for row in told.get("logprobs") or ()
    ]
    again = [_of_text(*row, calls, text) for row in rows]
    pairs = [(row[1], each[0]) for row, each in zip(rows, again, strict=True) if each]
    ended = [own == output[:-1] for own, output in pairs if not text(output[-1:])]
    if not all(_agree(*pair) for pair in pairs) or (ended and all(ended)):
        for number, each in enumerate(again):
            if each:
                rows[number] = rows[number][0], each[0]
                logprobs[number : number + 1] = [each[1] or []]
    known = [len(row) for row in logprobs] == [len(completion) for _, completion in rows]
    wrote = [_written(prompt, completion, calls) for prompt, completion in rows]
    if not all(map(any, wrote)):
        if not known:
            return []
        wrote = [_likely(*row, values, score) for row, values in zip(rows, logprobs, strict=True)]
    turns = [_turns(each) for each in wrote]
    used = calls[0].used if calls else None
    found = []
    for number in range(max(map(len, turns), default=0)):
        own = [(row, *each[number]) for row, each in enumerate(turns) if len(each) > number]
        found.append(
            Call(
                [[*rows[row][0], *rows[row][1][:start]] for row, start, _ in own],
                [rows[row][1][start:end] for row, start, end in own],
                [logprobs[row][start:end] for row, start, end in own] if known else [],
                used,
                rows=[row for row, _, _ in own],
            )
        )
    return found


def _of_text(
    prompt: list[int],
    completion: list[int],
    calls: Sequence[Call],
    text: Callable[[list[int]], str],
) -> tuple[list[int], list[float] | None] | None:
    """Return what a call wrote behind the prompt whose text the completion has, and its log-probabilities."""
    fitting = [
        (output, values)
        for call in calls
        for read, output, values in zip_longest(call.prompts, call.outputs, call.logprobs)
        if read == prompt and text(output) == text(completion)
    ]
    return max(fitting, key=lambda each: _agree(completion, each[0]), default=None)


def _agree(completion: list[int], output: list[int]) -> bool:
    """Return whether a completion is what was written, or a part of it, whatever its end is."""
    return all(a == b for a, b in zip(completion, output[:-1], strict=False))


def _written(prompt: list[int], completion: list[int], calls: Sequence[Call]) -> list[bool]:
    """Return which tokens of a completion calls of the sampler wrote."""
    ids, wrote = prompt + completion, [False] * len(completion)
    for call in calls:
        for read, output in zip(call.prompts, call.outputs, strict=True):
            start, end = len(read) - len(prompt), len(read) - len(prompt) + len(output)
            if start >= 0 and ids[: len(read)] == read and completion[start:end] == output:
                wrote[start:end] = [True] * len(output)
    return wrote


def _likely(
    prompt: list[int],
    completion: list[int],
    logprobs: list[float],
    score: Callable[[list[int], int], list[float]],
) -> list[bool]:
    wrote = [value != 0 for value in logprobs]
    if all(wrote) or not any(wrote):
        return wrote
    # a token that is certain has a log-probability of 0 too
    own = score(prompt + completion, len(completion))
    return [is_so or value > -_CERTAIN for is_so, value in zip(wrote, own, strict=True)]


def _turns(wrote: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where each reply begins and ends; the first one, which may be empty, begins with the completion."""
    edges = [
        n
        for n in range(len(wrote) + 1)
        if (n > 0 and wrote[n - 1]) != (n < len(wrote) and wrote[n])
    ]
    pairs = [*zip(edges[::2], edges[1::2], strict=True)]
    return pairs if pairs and not pairs[0][0] else [(0, 0), *pairs]


def _with_scores(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `generate` that have it return what tokens were drawn from."""
    asked = {"return_dict_in_generate": True, "output_scores": True}
    config = named.get("generation_config")
    if config is None:
        return {**named, **asked}
    config = copy.deepcopy(config)
    config.return_dict_in_generate = config.output_scores = True
    return {**named, "generation_config": config}
