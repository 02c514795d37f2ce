"""Rollouts again from the token ids that another trainer recorded: scored by our environment, not by it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice
from operator import itemgetter

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment
from rlvr_debug.sampling.base import Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout, Segment, add_reply, add_score


def rebuilt(
    row: Row,
    ids: Sequence[int],
    sampled: Sequence[int],
    logprobs: Sequence[float],
    environment: Environment,
    chat: Chat,
) -> Rollout:
    """Return the rollout that these ids, [T], are, of which the model wrote `sampled`; a tool's text is the trainer's."""
    by_writer = groupby(zip(sampled, ids, strict=True), key=itemgetter(0))
    parts = [(is_reply, [token for _, token in run]) for is_reply, run in by_writer]
    current, values = Rollout(row, []), iter(logprobs)
    for place, (is_reply, tokens) in enumerate(parts):
        if is_reply:
            known = list(islice(values, len(tokens)))
            sample = Sample(tokens, known, tokens[-1] in chat.ends)
            last = place + 1 == len(parts)
            add_reply(current, sample, environment, chat, last=last)
        elif not current.segments:
            current.segments.append(Segment("prompt", tokens))
        else:
            current.segments.append(Segment("tool", tokens, texts=(chat.decode(tokens),)))
    if current.outcome == "turn_limit" and current.turns < environment.max_turns:
        current.outcome = "token_limit"  # there was no room for what the tools said
    add_score(current, environment)
    return current


def written(completion: Sequence[int], chat: Chat) -> list[bool]:
    """Say which tokens of a completion, [T], the model wrote: up to an end of turn, and after each generation prompt."""
    start = chat.encode(chat.generation_prompt())
    by_model: list[bool] = []
    while len(by_model) < len(completion):
        place = len(by_model)
        end = min(_after(completion, [token], place) for token in chat.ends)
        by_model += [True] * (end - place)
        by_model += [False] * (_after(completion, start, end) - end)
    return by_model


def _after(ids: Sequence[int], wanted: Sequence[int], start: int) -> int:
    """The place after the first occurrence of `wanted` from `start` on, or the end."""
    for place in range(start, len(ids) - len(wanted) + 1):
        if list(ids[place : place + len(wanted)]) == list(wanted):
            return place + len(wanted)
    return len(ids)
