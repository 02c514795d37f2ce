"""A small model server in the protocol of vLLM's completions, over the sampler that else runs in process.

    VLLM_API_KEY=... python -m rlvr_debug.serving.small_server --model models/tiny --port 8000

Token ids in, token ids and log-probabilities out. It takes one request at a time and keeps nothing between
them, so that a reply depends on its request alone, whatever else is asked meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from aiohttp import web

from rlvr_debug.errors import InputError
from rlvr_debug.models.base_model import model_config
from rlvr_debug.processes import run_main
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.serving.choose import base_sampler

__all__ = ["application"]

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(sampler: InProcessSampler, vocabulary: int, name: str, key: str) -> web.Application:
    """GET /health, for everyone, and POST /v1/completions, for who has the key.

    vocabulary: how many token ids there are; name: the model's.
    """
    one_at_a_time = asyncio.Lock()

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def completions(request: web.Request) -> web.Response:
        try:
            asked = _checked(await request.json(), vocabulary, name)
        except (ValueError, InputError) as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        async with one_at_a_time:
            reply = await asyncio.to_thread(_complete, asked, sampler)
        return web.json_response({"model": name, "choices": [reply]})

    @web.middleware
    async def with_key(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if request.path != "/health" and not secrets.compare_digest(given, f"Bearer {key}"):
            return web.json_response({"error": {"message": "expected the API key"}}, status=401)
        return await handler(request)

    app = web.Application(middlewares=[with_key], client_max_size=2**26)
    app.add_routes([web.get("/health", health), web.post("/v1/completions", completions)])
    return app


def _checked(body: Any, vocabulary: int, name: str) -> dict[str, Any]:
    """The request, if it can be answered. Raises InputError if not."""
    if not isinstance(body, dict) or body.get("model") != name:
        raise InputError(f"expected an object with model '{name}'")
    prompt, limit = body.get("prompt"), body.get("max_tokens")
    if not (isinstance(prompt, list) and prompt and all(type(i) is int for i in prompt)):
        raise InputError("expected a prompt of token ids")
    if not all(0 <= i < vocabulary for i in prompt):
        raise InputError(f"expected token ids below {vocabulary}")
    if type(limit) is not int or limit < 1:
        raise InputError("expected max_tokens of at least 1")
    if type(body.get("seed")) is not int or not isinstance(body.get("temperature"), int | float):
        raise InputError("expected a seed and a temperature")
    return body


@torch.no_grad()
def _complete(asked: dict[str, Any], sampler: InProcessSampler) -> dict[str, Any]:
    [sample] = sampler.sample(
        [Request(0, asked["prompt"], None)],
        temperature=asked["temperature"],
        max_new_tokens=asked["max_tokens"],
        seed=asked["seed"],
    )
    sampler.reset()
    return {
        "index": 0,
        "finish_reason": "stop" if sample.stopped else "length",
        "token_ids": sample.ids,
        "logprobs": {"token_logprobs": sample.logprobs},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--served-model-name", default="policy")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--uds", help="a socket's file, to listen there and on no port")
    args = parser.parse_args()
    key = os.environ.get("VLLM_API_KEY", "")
    if not key:
        raise InputError("VLLM_API_KEY: not set, expected the key that requests must have")
    torch.set_num_threads(1)
    vocabulary = model_config(args.model)["vocab_size"]
    sampler = base_sampler(args.model, Chat(args.model))
    app = application(sampler, vocabulary, args.served_model_name, key)
    if args.uds:
        web.run_app(app, path=args.uds, print=None)
    else:
        web.run_app(app, host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    run_main(main)
