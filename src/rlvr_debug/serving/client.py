"""A sampler behind HTTP, in the protocol of vLLM's completions: token ids there, token ids back.

Nothing is encoded or decoded on the way, so that what is trained is what was sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp_retry import ExponentialRetry, RetryClient

from rlvr_debug.errors import InputError, short
from rlvr_debug.sampling.base import Request, Sample
from rlvr_debug.serving.endpoint import Endpoint, first_error

__all__ = ["ServedSampler", "sample_of"]

_TRIES = 3
_SECONDS = 600.0  # for one reply, however long the queue


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
                # at this id and at no other that the model's config may name
                "stop_token_ids": [self._eos_id],
                "ignore_eos": True,
            }
            for request in requests
        ]
        return asyncio.run(self._ask(bodies))

    async def _ask(self, bodies: list[dict[str, Any]]) -> list[Sample]:
        # what took so long once would do so again
        retry = ExponentialRetry(_TRIES, statuses={502, 503, 504}, exceptions={aiohttp.ClientError})
        async with self._endpoint.session(_SECONDS) as session:
            client = RetryClient(session, retry_options=retry)
            return await asyncio.gather(*(self._one(client, body) for body in bodies))

    async def _one(self, client: RetryClient, body: dict[str, Any]) -> Sample:
        place = f"{self._endpoint.url}: /v1/completions"
        limit = body["max_tokens"]
        try:
            async with client.post("/v1/completions", json=body) as answer:
                text = await answer.text()
                if answer.status != 200:
                    raise InputError(f"the server answered {answer.status}: {_said(text)}")
            return sample_of(json.loads(text), limit, self._eos_id)
        except InputError as error:
            asked = f"a prompt of {len(body['prompt'])} tokens and {limit} more"
            raise InputError(f"{place}: {error} (asked: {asked})") from None
        except ValueError:
            raise InputError(f"{place}: expected JSON, found {short(text)}") from None
        except TimeoutError:
            raise InputError(f"{place}: no answer within {_SECONDS:g} s") from None
        except aiohttp.ClientError as error:
            said = str(error) or type(error).__name__
            log = self._endpoint.log
            raise InputError(
                f"{place}: no answer after {_TRIES} tries: {said}; of the server: "
                f"{first_error(Path(log))} (all of it: {log})"
            ) from None


def sample_of(answer: Any, max_tokens: int, eos_id: int) -> Sample:
    """What a completion of the protocol says. Raises InputError where it is none, or not the one asked for."""
    try:
        [choice] = answer["choices"]
        ids, reason = list(choice["token_ids"]), choice["finish_reason"]
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"the server answered {short(answer)}, expected a completion") from None
    if len(ids) != len(logprobs):
        raise InputError(
            f"the server answered {len(ids)} ids and {len(logprobs)} log-probabilities"
        )
    # the end-of-turn id comes last or not at all; a limit is the one that was asked for
    if reason == "stop" and eos_id in ids and ids.index(eos_id) + 1 == len(ids):
        return Sample(ids, logprobs, True)
    if reason == "length" and eos_id not in ids:
        if len(ids) == max_tokens:
            return Sample(ids, logprobs, False)
        raise InputError(
            f"the server cut a reply at {len(ids)} tokens, expected {max_tokens} or the end of the "
            "turn: more than its context holds (vllm.max_model_len)"
        )
    raise InputError(
        f"the server ended a reply with '{reason}' and id {ids[-1:]}, expected {eos_id}"
    )


def _said(text: str) -> str:
    """The message of an error in the protocol, or what there is, on one line."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        text = json.loads(text)["error"]["message"]
    return " ".join(str(text).split())[:300]
