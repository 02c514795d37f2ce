"""Plays rollouts that our sampler made back to a release of verifiers, through its own rollout loop.

This module runs in a release's environment only: later releases lack what it imports.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from datasets import Dataset
from openai.types.chat import ChatCompletion
from verifiers import MultiTurnEnv, Rubric

from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.sampling.base import Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.rollouts import Rollout
from rlvr_debug.trainers.verifiers.completion import completion

__all__ = ["Replay"]


class Replay(MultiTurnEnv):
    """The release's environment, in which the model writes what it wrote in `rollouts`, tools answer as
    they did, and each part of the reward is a reward function.

    `told` are the last arguments of process_env_results_vllm, which makes the trainer's batch.
    """

    def __init__(self, rollouts: list[Rollout], environment: Environment, chat: Chat) -> None:
        self.played, self._chat = rollouts, chat
        self.told: dict[str, Any] = {}
        weights = environment.weights
        super().__init__(
            dataset=Dataset.from_list(
                [{"prompt": environment.messages(r.row), "answer": r.row.answer} for r in rollouts]
            ),
            oai_tools=environment.tools or None,
            rubric=Rubric(
                funcs=[self._part(name) for name in weights],
                weights=[weight / sum(weights.values()) for weight in weights.values()],
            ),
            # the rollouts say when they end
            max_turns=environment.max_turns + 1,
        )
        self.inputs = [
            {**self.dataset[i], "task": "default", "info": {"rollout": i}}
            for i in range(len(rollouts))
        ]

    def _part(self, name: str) -> Callable[..., float]:
        def part(state: dict[str, Any]) -> float:
            return self._of(state).parts[name]

        part.__name__ = name
        return part

    def _of(self, state: dict[str, Any]) -> Rollout:
        played: Rollout = self.played[state["info"]["rollout"]]
        return played

    async def rollout(self, client: Any, *given: Any, **named: Any) -> Any:
        bound = inspect.signature(super().rollout).bind(client, *given, **named)
        played = self.played[bound.arguments["info"]["rollout"]]
        bound.arguments["client"] = _client(played, self._chat)
        return await super().rollout(*bound.args, **bound.kwargs)

    async def is_completed(self, messages: Any, state: dict[str, Any], **_: Any) -> bool:
        return len(state["responses"]) == self._of(state).turns

    async def env_response(self, messages: Any, state: dict[str, Any], **_: Any) -> Any:
        tools = [s for s in self._of(state).segments if s.role == "tool"]
        texts = tools[len(state["responses"]) - 1].texts
        answers = [
            {"role": "tool", "content": text, "tool_call_id": str(i)}
            for i, text in enumerate(texts)
        ]
        return answers, state

    def process_env_results_vllm(self, **told: Any) -> Any:
        self.told = told
        return super().process_env_results_vllm(**told)

    def processed(self, messages: int) -> list[int]:
        """Return how many tokens the release makes of each prompt and this many messages after it, [B]."""
        completions = [completion[:messages] for completion in self.told["completions"]]
        states = [
            {
                **state,
                "responses": state["responses"][
                    : sum(m["role"] == "assistant" for m in completion)
                ],
            }
            for state, completion in zip(self.told["states"], completions, strict=True)
        ]
        told = {**self.told, "completions": completions, "states": states, "max_seq_len": -1}
        found = super().process_env_results_vllm(**told)
        return [
            len(prompt) + len(completion)
            for prompt, completion in zip(found.prompt_ids, found.completion_ids, strict=True)
        ]


def _client(rollout: Rollout, chat: Chat) -> Any:
    """Return what the rollout loop asks of an OpenAI client, which answers with the rollout's replies.

    The client raises InputError where it is asked for another prompt than the rollout was sampled from.
    """
    replies = iter([s for s in rollout.segments if s.role == "assistant"])
    prompt = rollout.segments[0].ids

    async def create(*, messages: Any, tools: Any = None, **_: Any) -> ChatCompletion:
        first = not any(message["role"] == "assistant" for message in messages)
        if first and chat.prompt(messages, tools or []) != prompt:
            raise InputError("the release asks for another prompt than was sampled from")
        segment = next(replies)
        stopped = segment.ids[-1:] == [chat.eos_id]
        return completion(Sample(segment.ids, segment.logprobs, stopped), chat)

    completions = SimpleNamespace(create=create)
    return SimpleNamespace(base_url="", chat=SimpleNamespace(completions=completions))
