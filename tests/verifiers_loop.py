"""Rollouts through verifiers' train path in one process: its graph, client and renderer, our sampler.

What verifiers' runner does with servers and subprocesses, without them. All rollouts go in step.
"""

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import verifiers.v1 as vf
from renderers import Qwen3RendererConfig
from verifiers.v1.clients.train import TrainClient
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.graph import prepare_turn

from rlvr_debug.environments.base import answer
from rlvr_debug.sampling.base import Request, Sampler
from rlvr_debug.sampling.tool_calls import hermes

_numbers = itertools.count()


def trace_rollouts(
    tasks: Sequence[Any], tokenizer: Path, sampler: Sampler, *, temperature: float = 0.0
) -> list[Any]:
    """One scored trace per task. `tokenizer`: a folder with one of Qwen3's format."""
    return asyncio.run(_roll(tasks, tokenizer, sampler, temperature))


class _Engine:
    """Stands where the client keeps its HTTP client: batches what `expected` requests ask for."""

    def __init__(self, rows: dict[str, Any], sampler: Sampler) -> None:
        self.base_url = f"http://in-process-{next(_numbers)}"  # verifiers caches by it
        self.expected = 0
        self._rows, self._sampler = rows, sampler
        self._slots = {session: slot for slot, session in enumerate(rows)}
        self._waiting: list[tuple[Request, asyncio.Future[Any]]] = []

    async def get(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("there is no server")

    async def close(self) -> None:
        pass

    async def post(self, url: str, *, cast_to: Any, body: Any, options: Any) -> Any:
        session = options["headers"]["X-Session-ID"]
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = Request(self._slots[session], body["token_ids"], self._rows[session])
        self._waiting.append((request, answer))
        if len(self._waiting) == self.expected:
            waiting, self._waiting = sorted(self._waiting, key=lambda w: w[0].slot), []
            params = body["sampling_params"]
            samples = self._sampler.sample(
                [request for request, _ in waiting],
                temperature=params["temperature"],
                max_new_tokens=params["max_tokens"],
                seed=0,
            )
            for (_, future), sample in zip(waiting, samples, strict=True):
                future.set_result(SimpleNamespace(content=_generated(sample)))
        return await answer


def _generated(sample: Any) -> bytes:
    tokens = zip(sample.ids, sample.logprobs, strict=True)
    choice = {
        "index": 0,
        "token_ids": sample.ids,
        "finish_reason": "stop" if sample.stopped else "length",
        "logprobs": {"content": [{"token": f"token_id:{i}", "logprob": x} for i, x in tokens]},
    }
    return json.dumps({"choices": [choice]}).encode()


async def _roll(
    tasks: Sequence[Any], tokenizer: Path, sampler: Sampler, temperature: float
) -> list[Any]:
    traces = [
        vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data),
            agent=vf.AgentInfo(config=vf.AgentConfig(runtime=vf.SubprocessConfig())),
        )
        for task in tasks
    ]
    rows = {trace.id: task.data.row for trace, task in zip(traces, tasks, strict=True)}
    engine = _Engine(rows, sampler)
    config = vf.TrainClientConfig(
        base_url=engine.base_url,
        renderer=Qwen3RendererConfig(),
        renderer_model_name=str(tokenizer),
    )
    client = TrainClient(config)
    client.client = engine
    messages = [list(task.data.prompt) for task in tasks]
    active = list(range(len(tasks)))
    while active:
        engine.expected = len(active)
        replies = await asyncio.gather(
            *(_turn(client, traces[i], tasks[i], messages[i], temperature) for i in active)
        )
        ongoing = []
        for i, reply in zip(active, replies, strict=True):
            task, trace = tasks[i], traces[i]
            messages[i] += [reply.message, *_results(task, reply.message)]
            if not reply.message.tool_calls:
                trace.stop("agent_completed")
            elif await task.token_limit(reply):
                trace.stop("token_limit")
            elif await task.turn_limit(trace):
                trace.stop("turn_limit")
            elif await task.submitted(trace):
                trace.stop("submitted")
            else:
                ongoing.append(i)
        active = ongoing
    for task, trace in zip(tasks, traces, strict=True):
        trace.ok = True
        await task.score(trace)
    return traces


async def _turn(client: Any, trace: Any, task: Any, messages: list[Any], temperature: float) -> Any:
    tools = [vf.Tool(**tool["function"]) for tool in task.environment.tools]
    turn = prepare_turn(trace, list(messages), tools)
    sampling = vf.SamplingConfig(
        temperature=temperature, max_tokens=task.environment.max_new_tokens
    )
    response = await client.get_response(
        ChatDialect(), {"model": "in-process"}, sampling, session_id=trace.id, turn=turn
    )
    node = turn.commit(response)
    trace.calls.append(vf.ModelCall(node=node, finish_reason=response.finish_reason))
    return response


def _results(task: Any, message: Any) -> list[Any]:
    results = []
    for call in message.tool_calls or []:
        [parsed] = hermes(
            f'<tool_call>{{"name": "{call.name}", "arguments": {call.arguments}}}</tool_call>'
        )
        result = answer(parsed, task.data.row, task.environment)
        results.append(vf.ToolMessage(tool_call_id=call.id, content=result.text))
    return results
