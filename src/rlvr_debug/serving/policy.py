"""vLLM's server as the sampler of a policy that is trained: every update reaches it before it is asked again.

An adapter has a name of its own for each step, so that no cached prefix of the last one is met and every reply
says which step it came from. docs/vllm.md has what was measured of other ways.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlvr_debug.errors import InputError, short
from rlvr_debug.models.base_model import save_weights
from rlvr_debug.serving.client import ServedSampler, ServerGone
from rlvr_debug.serving.endpoint import Endpoint

if TYPE_CHECKING:
    from rlvr_debug.grpo.policy import Policy

__all__ = ["ServedPolicy"]


class ServedPolicy(ServedSampler):
    """name: of the run, which no other has on that server; folder: of its own, for what the server reads.

    With LoRA the policy is an adapter beside those of other runs; without, the server's model, which nobody
    else may ask.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        eos_id: int,
        name: str,
        folder: Path,
        again: Callable[[], Endpoint] | None = None,
    ) -> None:
        super().__init__(endpoint, eos_id, again)
        self._name, self._folder, self._step = name, folder, -1
        self._lora = False
        self.served = ""

    def begin(self, policy: Policy, others: Mapping[str, Tensor], step: int) -> None:
        self._step = step - 1
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
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
            with suppress(InputError):  # it may be gone
                self._unload(self.served)

    def _restart(self, gone: ServerGone) -> None:
        super()._restart(gone)
        self._load()

    def weights(self) -> dict[str, Tensor]:
        """None are in this process."""
        return {}

    def reset(self) -> None:
        """There is nothing in this process to give back."""

    def logprobs(self, ids: list[list[int]]) -> list[list[float]]:
        """Of all tokens but the first of these sequences, at temperature 1."""
        asked = {"model": self.model, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        answers = self.completions([{**asked, "prompt": each} for each in ids])
        return [_of_prompt(*each, self.model) for each in zip(answers, ids, strict=True)]


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
        raise InputError(f"the server answered with model {short(by)}, expected '{model}'")
    return values
