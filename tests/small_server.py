"""The sampler that else runs in process as a server, in the place of vLLM for processors: it is ready in two seconds.

It reads the model, the place and the key of vLLM's command line, and no flag of its engine. It answers one request at a
time and keeps nothing between them, so that a reply depends on its request alone, whatever else is asked meanwhile.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from aiohttp import web

from rlvr_debug.models.base_model import load_weights
from rlvr_debug.processes import run_main
from rlvr_debug.sampling.base import Request
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.generate import base_sampler
from rlvr_debug.sampling.in_process import InProcessSampler

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def install(root: Path) -> Path:
    """Return the interpreter of a checkout's environment vllm-cpu, which runs this server whatever module is named."""
    python = root / ".envs" / "vllm-cpu" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{__file__}" "$@"\n')
    python.chmod(0o755)
    (root / ".envs" / "vllm-cpu.ready").touch()
    return python


def application(sampler: InProcessSampler, name: str, key: str) -> web.Application:
    """Return an application that answers /health, completions and new weights for all parameters."""
    one_at_a_time = asyncio.Lock()

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    async def completions(request: web.Request) -> web.Response:
        async with one_at_a_time:
            reply = await asyncio.to_thread(_complete, await request.json(), sampler)
        return web.json_response({"model": name, "choices": [reply]})

    async def reload_weights(request: web.Request) -> web.Response:
        asked = await request.json()
        async with one_at_a_time:
            place = Path(asked["kwargs"]["weights_path"])
            sampler.load(load_weights(place / "model.safetensors"))
        return web.Response()

    @web.middleware
    async def with_key(request: web.Request, handler: _Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if request.path != "/health" and given != f"Bearer {key}":
            return web.json_response({"error": {"message": "expected the API key"}}, status=401)
        return await handler(request)

    app = web.Application(middlewares=[with_key], client_max_size=2**26)
    app.add_routes(
        [
            web.get("/health", health),
            web.post("/v1/completions", completions),
            web.post("/collective_rpc", reload_weights),
            web.post("/reset_prefix_cache", health),
        ]
    )
    return app


@torch.no_grad()
def _complete(asked: dict[str, Any], sampler: InProcessSampler) -> dict[str, Any]:
    ids = asked["prompt"]
    if "prompt_logprobs" in asked:
        [values] = sampler.logprobs([ids])
        known = [
            {str(token): {"logprob": value}} for token, value in zip(ids[1:], values, strict=True)
        ]
        return {"prompt_logprobs": [None, *known]}
    [sample] = sampler.sample(
        [Request(0, ids, None)],
        temperature=asked["temperature"],
        max_new_tokens=asked["max_tokens"],
        seed=asked["seed"],
    )
    sampler.reset()
    return {
        "finish_reason": "stop" if sample.stopped else "length",
        "token_ids": sample.ids,
        "logprobs": {"token_logprobs": sample.logprobs},
    }


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--served-model-name")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--uds")
    args, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    sampler = base_sampler(args.model, Chat(args.model))
    assert isinstance(sampler, InProcessSampler)
    app = application(sampler, args.served_model_name, os.environ["VLLM_API_KEY"])
    web.run_app(app, host=args.host, port=args.port, path=args.uds, print=None)


if __name__ == "__main__":
    run_main(main)
