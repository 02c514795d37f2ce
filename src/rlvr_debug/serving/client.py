"""A sampler behind HTTP, in the protocol of vLLM's completions: token ids there, token ids back.

Nothing is encoded or decoded on the way, so that what is trained is what was sampled.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import numpy as np
from aiohttp_retry import ExponentialRetry, RetryClient

from rlvr_debug.errors import InputError
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.serving.endpoint import Endpoint

__all__ = ["ServedSampler"]

_TRIES = 3
_CONCURRENT = 256
_SECONDS = 600  # for one reply, however long the queue


class ServedSampler:
    """Asks a server that is ready. eos_id: the token that ends a turn."""

    def __init__(self, endpoint: Endpoint, eos_id: int) -> None:
        self._endpoint, self._eos_id = endpoint, eos_id

    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        """One HTTP request per conversation, all at once; each has a seed of its own, from `seed` and its slot.

        Raises InputError when the server is gone or refuses.
        """
        bodies = [
            {
                "model": self._endpoint.model,
                "prompt": request.ids,
                "temperature": temperature,
                "max_tokens": max_new_tokens,
                "seed": int(np.random.SeedSequence([seed, request.slot]).generate_state(1)[0]),
                "logprobs": 0,
                "return_token_ids": True,
                "stop_token_ids": [self._eos_id],
            }
            for request in requests
        ]
        return asyncio.run(self._ask(bodies))

    async def _ask(self, bodies: list[dict[str, Any]]) -> list[Sample]:
        session = aiohttp.ClientSession(
            self._endpoint.url,
            headers={"Authorization": f"Bearer {self._endpoint.key}"},
            connector=aiohttp.TCPConnector(limit=_CONCURRENT),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
        )
        async with session:
            retry = ExponentialRetry(_TRIES, statuses={502, 503, 504})
            client = RetryClient(session, retry_options=retry)
            return await asyncio.gather(*(self._one(client, body) for body in bodies))

    async def _one(self, client: RetryClient, body: dict[str, Any]) -> Sample:
        place = f"{self._endpoint.url}/v1/completions"
        try:
            async with client.post("/v1/completions", json=body) as answer:
                if answer.status != 200:
                    said = " ".join((await answer.text()).split())[:200]
                    raise InputError(f"{place}: the server answered {answer.status}: {said}")
                [choice] = (await answer.json())["choices"]
        except (aiohttp.ClientError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            raise InputError(f"{place}: no answer after {_TRIES} tries: {said}") from None
        ids = choice["token_ids"]
        return Sample(ids, choice["logprobs"]["token_logprobs"], ids[-1] == self._eos_id)
