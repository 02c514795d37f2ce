"""Rows to rollouts: the one loop that training, evaluation and scripted policies go through."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter

import numpy as np

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import Environment, ToolResult, Transcript, answer_calls
from rlvr_debug.sampling.base import Request, Sample, Sampler
from rlvr_debug.sampling.chat import Chat


@dataclass(frozen=True)
class Segment:
    """A run of tokens of one role: prompt, assistant (sampled) or tool; texts: the reply, or one result per tool call."""

    role: str
    ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    texts: tuple[str, ...] = ()


@dataclass
class Rollout:
    """One conversation as it was sampled; `ids` is exactly what the sampler saw and wrote."""

    row: Row
    segments: list[Segment]
    transcript: Transcript = field(default_factory=Transcript)
    parts: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    outcome: str = (
        ""  # token_limit, turn_limit, context_limit, or what the environment says of the answer
    )
    call_errors: Counter[str] = field(default_factory=Counter)  # by CALL_ERRORS
    prompt_cut: int = 0  # tokens that the prompt lost to its limit

    @property
    def ids(self) -> list[int]:
        return [token for segment in self.segments for token in segment.ids]

    @property
    def sampled(self) -> list[bool]:
        """The environment's own mask [T]: which tokens the model wrote."""
        return [s.role == "assistant" for s in self.segments for _ in s.ids]

    @property
    def turns(self) -> int:
        return sum(segment.role == "assistant" for segment in self.segments)


@dataclass(frozen=True)
class Limits:
    """Tokens of a prompt, which loses the rest on truncation_side, and of a reply; 0: all, and as the environment says."""

    prompt: int = 0
    truncation_side: str = "left"
    reply: int = 0


NO_LIMITS = Limits()


def rollout(
    rows: Sequence[Row],
    environment: Environment,
    chat: Chat,
    sampler: Sampler,
    *,
    temperature: float,
    seed: int,
    limits: Limits = NO_LIMITS,
) -> list[Rollout]:
    """Return one rollout per row, all of them made in step, turn by turn. Same seed, same rollouts."""
    rollouts = []
    for row in rows:
        ids = chat.prompt(environment.messages(row), environment.tools)
        kept = truncated(ids, limits.prompt, limits.truncation_side)
        rollouts.append(Rollout(row, [Segment("prompt", kept)], prompt_cut=len(ids) - len(kept)))
    seeds = np.random.SeedSequence(seed).generate_state(environment.max_turns)
    active = list(range(len(rollouts)))
    for turn in range(environment.max_turns):
        if not active:
            break
        samples = sampler.sample(
            [Request(slot, rollouts[slot].ids, rollouts[slot].row) for slot in active],
            temperature=temperature,
            max_new_tokens=limits.reply or environment.max_new_tokens,
            seed=int(seeds[turn]),
        )
        for slot, sample in zip(active, samples, strict=True):
            current, last = rollouts[slot], turn + 1 == environment.max_turns
            read = frozenset(current.transcript.retrieved)
            results = add_reply(current, sample, environment, chat, last=last)
            if current.outcome:
                continue
            texts = tuple(result.text for result in results)
            ids = chat.tool_turn(texts)
            if 0 < environment.max_context < len(current.ids) + len(ids):
                # what is retrieved and never read does not count
                current.transcript.retrieved = set(read)
                current.outcome = "context_limit"
            else:
                current.segments.append(Segment("tool", ids, texts=texts))
        active = [slot for slot in active if not rollouts[slot].outcome]
    for current in rollouts:
        add_score(current, environment)
    return rollouts


def add_reply(
    current: Rollout, sample: Sample, environment: Environment, chat: Chat, *, last: bool
) -> list[ToolResult]:
    """Note what the model wrote, and how the rollout ended if it did; return what its calls are answered with."""
    text = chat.decode(sample.ids)
    current.segments.append(Segment("assistant", sample.ids, sample.logprobs, (text,)))
    current.transcript.replies.append(text)
    calls, results = chat.tool_calls(text), []
    if not sample.stopped:
        current.outcome = "token_limit"
    elif calls:
        results = answer_calls(calls, current.row, environment, current.transcript, last=last)
        current.call_errors.update(r.error for r in results if r.error)
        if current.transcript.submitted is not None:
            current.outcome = environment.outcome(current.transcript)
        elif last:
            current.outcome = "turn_limit"
    else:
        current.outcome = environment.outcome(current.transcript)
    return results


def add_score(current: Rollout, environment: Environment) -> None:
    current.parts = environment.score(current.row, current.transcript)
    current.reward = environment.reward(current.row, current.parts)


def truncated(ids: list[int], limit: int, side: str) -> list[int]:
    """At most `limit` ids, without those on that side; all of them if the limit is 0."""
    if not limit:
        return ids
    return ids[-limit:] if side == "left" else ids[:limit]


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
