"""Rows to rollouts: the one loop that training, evaluation and scripted policies go through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rlvr_debug.data.rows import Row
from rlvr_debug.environments.base import (
    Environment,
    Transcript,
    combined_reward,
    parse_tool_calls,
)
from rlvr_debug.sampling.base import Request, Sampler
from rlvr_debug.sampling.chat import Chat

__all__ = ["Rollout", "Segment", "rollout"]


@dataclass(frozen=True)
class Segment:
    """A run of tokens of one role: prompt, assistant (sampled, with log-probabilities) or tool."""

    role: str
    ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    text: str = ""


@dataclass
class Rollout:
    """One conversation as it was sampled; `ids` is exactly what the sampler saw and wrote."""

    row: Row
    segments: list[Segment]
    transcript: Transcript = field(default_factory=Transcript)
    parts: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    outcome: str = ""  # answered, token_limit or turn_limit
    failed_calls: int = 0

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


def rollout(
    rows: Sequence[Row],
    environment: Environment,
    chat: Chat,
    sampler: Sampler,
    *,
    temperature: float,
    seed: int,
) -> list[Rollout]:
    """One rollout per row, all of them in step, turn by turn. Same seed, same rollouts."""
    rollouts = [Rollout(row, [_prompt(row, environment, chat)]) for row in rows]
    seeds = np.random.SeedSequence(seed).generate_state(environment.max_turns)
    active = list(range(len(rollouts)))
    for turn in range(environment.max_turns):
        samples = sampler.sample(
            [Request(slot, rollouts[slot].ids, rollouts[slot].row) for slot in active],
            temperature=temperature,
            max_new_tokens=environment.max_new_tokens,
            seed=int(seeds[turn]),
        )
        going = []
        for slot, sample in zip(active, samples, strict=True):
            current = rollouts[slot]
            text = chat.decode(sample.ids)
            current.segments.append(Segment("assistant", sample.ids, sample.logprobs, text))
            current.transcript.replies.append(text)
            if not sample.stopped:
                current.outcome = "token_limit"
            elif not parse_tool_calls(text):
                current.outcome = "answered"
            elif turn + 1 == environment.max_turns:
                current.outcome = "turn_limit"
            else:
                current.segments.append(_tool_turn(current, environment, chat))
                going.append(slot)
        active = going
        if not active:
            break
    for current in rollouts:
        current.parts = environment.score(current.row, current.transcript)
        current.reward = combined_reward(current.parts, environment.weights)
    return rollouts


def _prompt(row: Row, environment: Environment, chat: Chat) -> Segment:
    return Segment("prompt", chat.prompt(environment.messages(row), environment.tools))


def _tool_turn(current: Rollout, environment: Environment, chat: Chat) -> Segment:
    """Run the calls of the last reply; what they retrieve is noted in the transcript."""
    results = [
        environment.call_tool(current.row, call)
        for call in parse_tool_calls(current.transcript.last_reply)
    ]
    current.failed_calls += sum(result.failed for result in results)
    for result in results:
        current.transcript.retrieved.update(result.indices)
    text = "\n\n".join(result.text for result in results)
    return Segment("tool", chat.tool_turn(text), text=text)
