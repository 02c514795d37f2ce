"""A sampler behind HTTP, in the protocol of vLLM's completions: token ids there, token ids back, nothing encoded."""

import asyncio
import contextlib
import json
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp_retry import ExponentialRetry, RetryClient
from torch import Tensor

from rlvr_debug.errors import InputError, short
from rlvr_debug.models.base_model import ADAPTER, save_weights
from rlvr_debug.sampling.base import PolicySampler, Request, Sample
from rlvr_debug.serving.process import Endpoint, first_error

_TRIES = 3
_SECONDS = 600.0  # for one reply, however long the queue
# what took so long once would do so again
_RETRY = ExponentialRetry(_TRIES, statuses={502, 503, 504}, exceptions={aiohttp.ClientError})


class ServerGone(InputError):
    """The server answers no more, or only with errors of its own."""


class ServedSampler:
    """Asks a server that is ready; `again` returns another one, asked for once when the first is gone."""

    def __init__(
        self,
        endpoint: Endpoint,
        ends: Collection[int],
        again: Callable[[], Endpoint] | None = None,
    ) -> None:
        self._endpoint, self._ends, self._again = endpoint, ends, again
        self.model = endpoint.model

    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        """Make one HTTP request per conversation, all at once, each with a seed of its own, from `seed` and its slot."""
        bodies = [
            {
                "model": self.model,
                "prompt": request.ids,
                "temperature": temperature,
                "max_tokens": max_new_tokens,
                "seed": int(np.random.SeedSequence([seed, request.slot]).generate_state(1)[0]),
                "logprobs": 0,
                "return_token_ids": True,
                # at these ids and at no other that the server may know of
                "stop_token_ids": sorted(self._ends),
                "ignore_eos": True,
            }
            for request in requests
        ]
        answers = zip(bodies, self.completions(bodies), strict=True)
        return [self._sample(*each) for each in answers]

    def _sample(self, body: dict[str, Any], answer: Any) -> Sample:
        try:
            return sample_of(answer, body["max_tokens"], self._ends, self.model)
        except InputError as error:
            place = f"{self._endpoint.url}: /v1/completions"
            raise InputError(f"{place}: {error}{_asked(body)}") from None

    def completions(self, bodies: list[dict[str, Any]]) -> list[Any]:
        answers: dict[int, Any] = {}
        while missing := [i for i in range(len(bodies)) if i not in answers]:
            asked = [bodies[i] for i in missing]
            found = asyncio.run(self._ask("/v1/completions", asked))
            gone = [each for each in found if isinstance(each, ServerGone)]
            answers |= {
                i: each
                for i, each in zip(missing, found, strict=True)
                if not isinstance(each, ServerGone)
            }
            if gone:
                self._restart(gone[0])
        return [answers[i] for i in range(len(bodies))]

    def _restart(self, gone: ServerGone) -> None:
        """Raises what ended the server where there has been another one already."""
        if self._again is None:
            raise gone
        again, self._again = self._again, None
        warnings.warn(f"{gone}; waiting for another server", stacklevel=2)
        try:
            self._endpoint = again()
        except InputError as error:
            raise ServerGone(f"{gone}; then: {error}") from None
        self._load()

    def _load(self) -> None:
        """Have a server sample with what is not its own model."""

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The server's answer to one request, None where it is empty."""
        [found] = asyncio.run(self._ask(path, [body]))
        if isinstance(found, ServerGone):
            raise found
        return found

    async def _ask(self, path: str, bodies: list[dict[str, Any]]) -> list[Any]:
        """The answer to each, or how the server was gone before there was one."""
        async with self._endpoint.session(_SECONDS) as session:
            client = RetryClient(session, retry_options=_RETRY)
            asked = (self._one(client, path, body) for body in bodies)
            found = await asyncio.gather(*asked, return_exceptions=True)
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, ServerGone):
                raise each
        return found

    async def _one(self, client: RetryClient, path: str, body: dict[str, Any]) -> Any:
        place = f"{self._endpoint.url}: {path}"
        try:
            async with client.post(path, json=body) as answer:
                text = await answer.text()
            said = f"{place}: the server answered {answer.status}: {_said(text)}{_asked(body)}"
            if answer.status >= 500:  # of vLLM: its engine has ended, and it will soon
                raise ServerGone(said)
            if answer.status != 200:
                raise InputError(said)
            # some answers are words, such as that of load_lora_adapter
            json_type = "json" in answer.headers.get("Content-Type", "")
            return json.loads(text) if json_type and text else text or None
        except ValueError:
            raise InputError(f"{place}: expected JSON, found {short(text)}") from None
        except TimeoutError:
            raise InputError(f"{place}: no answer within {_SECONDS:g} s") from None
        except aiohttp.ClientError as error:
            said = str(error) or type(error).__name__
            log = self._endpoint.log
            raise ServerGone(
                f"{place}: no answer after {_TRIES} tries: {said}; of the server: "
                f"{first_error(Path(log))} (full log: {log})"
            ) from None


class ServedAdapter(ServedSampler):
    """vLLM's server samples with a trained adapter of its model. adapter: its folder."""

    def __init__(
        self,
        endpoint: Endpoint,
        ends: Collection[int],
        adapter: Path,
        again: Callable[[], Endpoint] | None = None,
    ) -> None:
        super().__init__(endpoint, ends, again)
        self._adapter = adapter
        self._load()

    def _load(self) -> None:
        body = {"lora_name": ADAPTER, "lora_path": str(self._adapter.resolve())}
        self.post("/v1/load_lora_adapter", body)
        self.model = ADAPTER


class ServedPolicy(ServedSampler, PolicySampler):
    """vLLM's server samples for a policy that is trained: every update reaches it before it is asked again (docs/vllm.md).

    With LoRA the policy is an adapter beside those of other runs, named for each step, so that no cached prefix of the last
    one is met; without, the server's model, which nobody else may ask.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        ends: Collection[int],
        name: str,
        folder: Path,
        again: Callable[[], Endpoint] | None = None,
    ) -> None:
        super().__init__(endpoint, ends, again)
        self._name, self._folder, self._step = name, folder, -1
        self._lora = False
        self.served = ""

    def begin(self, policy: Any, others: Mapping[str, Tensor], step: int) -> None:
        self._step = step - 1
        self.follow(policy)

    def follow(self, policy: Any) -> None:
        """Write the policy's weights to a folder that was never used, and have the server sample with them."""
        last, self._step = self._place, self._step + 1
        self._lora = policy.adapter is not None
        if adapter := policy.adapter_state():
            adapter.save(self._place)
        else:
            save_weights(policy.weights(), self._place / "model.safetensors")
        before, self.served = self.served, f"{self._name}@{self._step}"
        try:
            self._load()
        except ServerGone as gone:
            self._restart(gone)
        else:
            if self._lora and before and before != self.served:
                self._unload(before)
        # not before: a server that cannot read what it was told to ends
        if last != self._place:
            shutil.rmtree(last, ignore_errors=True)

    @property
    def _place(self) -> Path:
        return self._folder / f"{self._step:08d}"

    def _load(self) -> None:
        if self._lora:
            self._load_adapter()
            self.model = self.served
        else:
            given = {"weights_path": str(self._place)}
            self.post("/collective_rpc", {"method": "reload_weights", "kwargs": given})
            # what the old weights made of prompts would else be used
            self.post("/reset_prefix_cache", {})

    def _load_adapter(self) -> None:
        body = {"lora_name": self.served, "lora_path": str(self._place)}
        try:
            self.post("/v1/load_lora_adapter", body)
        except ServerGone:
            raise
        except InputError as refused:
            # one of that name is left of an attempt that ended without a word
            try:
                self._unload(self.served)
            except InputError:
                raise refused from None
            self.post("/v1/load_lora_adapter", body)

    def _unload(self, name: str) -> None:
        self.post("/v1/unload_lora_adapter", {"lora_name": name})

    def close(self) -> None:
        """Leave a server that others use as it was."""
        if self._lora:
            with contextlib.suppress(InputError):  # it may be gone
                self._unload(self.served)

    def logprobs(self, ids: list[list[int]]) -> list[list[float]]:
        """Of all tokens but the first of these sequences, at temperature 1."""
        asked = {"model": self.model, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        answers = self.completions([{**asked, "prompt": each} for each in ids])
        return [_of_prompt(*each, self.model) for each in zip(answers, ids, strict=True)]


def sample_of(answer: Any, max_tokens: int, ends: Collection[int], model: str) -> Sample:
    """Return what a completion of the protocol says, by `model`; raise InputError where it is not the one asked for."""
    try:
        by = answer["model"]
        [choice] = answer["choices"]
        ids, reason = list(choice["token_ids"]), choice["finish_reason"]
        logprobs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    except (KeyError, TypeError, ValueError):
        raise InputError(f"the server answered {short(answer)}, expected a completion") from None
    if len(ids) != len(logprobs):
        raise InputError(
            f"the server returned {len(ids)} token ids, but {len(logprobs)} log-probabilities"
        )
    if by != model:
        raise InputError(f"the server serves model {short(by)}, expected '{model}'")
    # an id that ends the turn comes last or not at all; a limit is the one that was asked for
    ended = [place for place, token in enumerate(ids) if token in ends]
    if reason == "stop" and ended == [len(ids) - 1]:
        return Sample(ids, logprobs, True)
    if reason == "length" and not ended:
        if len(ids) == max_tokens:
            return Sample(ids, logprobs, False)
        raise InputError(
            f"the server cut a reply at {len(ids)} tokens, expected {max_tokens} or an "
            "end-of-turn token: its context is full (raise vllm.max_model_len)"
        )
    raise InputError(
        f"the server ended a reply with reason '{reason}' and token id {ids[-1:]}, expected {short(sorted(ends))}"
    )


def _of_prompt(answer: Any, ids: list[int], model: str) -> list[float]:
    """The log-probabilities of a prompt's tokens. Raises InputError where the answer has none, or another model's."""
    try:
        [choice] = answer["choices"]
        _, *found = choice["prompt_logprobs"]
        values = [
            float(each[str(token)]["logprob"]) for each, token in zip(found, ids[1:], strict=True)
        ]
        by = answer["model"]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"the server answered {short(answer)}, expected a prompt's log-probabilities"
        ) from None
    if by != model:
        raise InputError(f"the server serves model {short(by)}, expected '{model}'")
    return values


def _asked(body: dict[str, Any]) -> str:
    if "prompt" not in body:
        return ""
    return f" (asked: a prompt of {len(body['prompt'])} tokens and {body['max_tokens']} more)"


def _said(text: str) -> str:
    """The message of an error in the protocol, or what there is, on one line."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        text = json.loads(text)["error"]["message"]
    return " ".join(str(text).split())[:300]
