"""Our sampler in the place of the vLLM server that a released trainer sends weights to and asks for chat completions."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from openai.types.chat import ChatCompletion
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler

# the release's module with the class VLLMClient
WEIGHT_CLIENT = "verifiers.inference.vllm_client"

# what a request may say beside temperature and limit: nothing that our sampler would have to do
_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "logprobs": True,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": (None, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": 1.0,
}
_QUIET = 8  # turns of the event loop without another request


@dataclass(frozen=True)
class _Waiting:
    """A request and who waits for its sample."""

    request: Request
    temperature: float
    limit: int
    answer: asyncio.Future[Sample]


@dataclass(frozen=True)
class Answered:
    """A request and its answer. slot: of its conversation; turn: which of its requests this is, from 0."""

    slot: int
    turn: int
    prompt: list[int]
    sample: Sample
    temperature: float
    limit: int


class Server:
    """The base model, or the last weights that it was sent, behind the two clients; `watch` is given each answer.

    rendered_otherwise: of later_turns, those whose prompt does not begin with the tokens that were sampled before.
    """

    def __init__(self, base_model: Path, chat: Chat, seed: int) -> None:
        self.chat = chat
        self.sampler = base_sampler(base_model, chat)
        self.later_turns = self.rendered_otherwise = 0
        self._seeds = np.random.SeedSequence(seed)
        self._waiting: list[_Waiting] = []
        self._answering: asyncio.Task[None] | None = None
        self._written: dict[int, list[int]] = {}
        self.watch: Callable[[Answered], None] = lambda _: None

    # --- chat completions

    def client(self, slot: int) -> Any:
        """Return what the rollout loop asks of an OpenAI client. slot: the rollout's number in its batch."""

        async def create(
            *, messages: Any, tools: Any = None, model: str = "", **options: Any
        ) -> Any:
            temperature, limit = _asked(options)
            ids = self.chat.prompt([plain_message(message) for message in messages], tools or [])
            turn = sum(message["role"] == "assistant" for message in messages)
            self._compare(slot, ids, first=not turn)
            sample = await self._sampled(Request(slot, ids, None), temperature, limit)
            self._written[slot] = [*ids, *sample.ids]
            self.watch(Answered(slot, turn, ids, sample, temperature, limit))
            return completion(sample, self.chat)

        return SimpleNamespace(
            base_url="", chat=SimpleNamespace(completions=SimpleNamespace(create=create))
        )

    def _compare(self, slot: int, ids: list[int], *, first: bool) -> None:
        before = self._written.pop(slot, None)
        if before is not None and not first:
            self.later_turns += 1
            self.rendered_otherwise += ids[: len(before)] != before

    def take_counts(self) -> tuple[int, int]:
        """Return later_turns and rendered_otherwise, and count from 0 again."""
        counts = self.later_turns, self.rendered_otherwise
        self.later_turns = self.rendered_otherwise = 0
        return counts

    async def _sampled(self, request: Request, temperature: float, limit: int) -> Sample:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, temperature, limit, loop.create_future())
        self._waiting.append(waiting)
        if self._answering is None:
            self._answering = loop.create_task(self._answer())
        return await waiting.answer

    async def _answer(self) -> None:
        """Answer all that wait, once no rollout asks for more: in the order of slots, so that it is the same each time."""
        size, quiet = -1, 0
        while quiet < _QUIET:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == size else 0
            size = len(self._waiting)
        batch = sorted(self._waiting, key=lambda each: each.request.slot)
        self._waiting, self._answering = [], None
        try:
            samples = self.sampler.sample(
                [each.request for each in batch],
                temperature=batch[0].temperature,
                max_new_tokens=batch[0].limit,
                seed=int(self._seeds.spawn(1)[0].generate_state(1)[0]),
            )
        except Exception as error:
            for each in batch:
                each.answer.set_exception(error)
            return
        for each, sample in zip(batch, samples, strict=True):
            each.answer.set_result(sample)

    # --- weights

    def weight_client(self) -> ModuleType:
        """Return a module to stand where the release's WEIGHT_CLIENT would."""
        server = self

        class VLLMClient:
            """Weights go to the sampler once all of them are there and the cache is to be reset, as in the release."""

            def __init__(self, **_: Any) -> None:
                self._held: dict[str, Tensor] = {}

            def init_communicator(self) -> None: ...

            def close_communicator(self) -> None: ...

            def update_named_param(self, name: str, weights: Tensor) -> None:
                self._held[name] = weights.detach().float().clone()

            def reset_prefix_cache(self) -> None:
                server.sampler.load(self._held)
                self._held = {}

            def get_num_background_tasks(self) -> int:
                return 0

        module = ModuleType(WEIGHT_CLIENT)
        module.VLLMClient = VLLMClient  # type: ignore[attr-defined]
        return module


def _asked(options: Mapping[str, Any]) -> tuple[float, int]:
    """Return temperature and limit. Raise InputError for an option that our sampler does not have."""
    given = {**options, **options.get("extra_body", {})}
    for name, neutral in _NEUTRAL.items():
        allowed = neutral if isinstance(neutral, tuple) else (neutral,)
        if name in given and given[name] not in allowed:
            raise InputError(
                f"options.{name} is {given[name]}, but the sampler in this process supports only {allowed[-1]}"
            )
    return float(given["temperature"]), int(given["max_completion_tokens"])


def plain_message(message: Any) -> dict[str, Any]:
    """Return a message as vLLM has it after HTTP: its calls' arguments parsed, before the template sees them."""
    found = dict(message)
    if found.get("tool_calls"):
        calls = [c if isinstance(c, dict) else c.model_dump() for c in found["tool_calls"]]
        found["tool_calls"] = [
            {
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
            }
            for call in calls
        ]
    return found


_TOKEN = "token_id:"


def completion(sample: Sample, chat: Chat) -> ChatCompletion:
    """Return the answer: the text with its tool calls as vLLM's parser named hermes has it, tokens by their ids."""
    text = chat.decode(sample.ids)
    calls = chat.tool_calls(text)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls and not any(call.error for call in calls):
        # what stands before the calls
        message["content"] = text.partition("<tool_call>")[0]
        message["tool_calls"] = [
            {
                "id": str(i),
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for i, call in enumerate(calls)
        ]
    tokens = [
        {"token": f"{_TOKEN}{token}", "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(sample.ids, sample.logprobs, strict=True)
    ]
    choice = {
        "index": 0,
        "finish_reason": "stop" if sample.stopped else "length",
        "message": message,
        "logprobs": {"content": tokens},
    }
    answer = {"id": "0", "created": 0, "model": "", "object": "chat.completion"}
    found: ChatCompletion = ChatCompletion.model_validate({**answer, "choices": [choice]})
    return found


def sample_of(answer: ChatCompletion) -> Sample:
    """Return the sample again that such an answer was made of."""
    [choice] = answer.choices
    tokens = choice.logprobs.content
    ids = [int(each.token.removeprefix(_TOKEN)) for each in tokens]
    return Sample(ids, [each.logprob for each in tokens], choice.finish_reason == "stop")
