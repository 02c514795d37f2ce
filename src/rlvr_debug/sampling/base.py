"""What a rollout asks of a sampler: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Request:
    """One conversation to continue. `slot` names it across turns; `row` is for scripted samplers."""

    slot: int
    ids: list[int]
    row: Any


@dataclass(frozen=True)
class Sample:
    """Sampled ids and their log-probabilities at the sampling temperature; stopped: the last id ends the turn."""

    ids: list[int]
    logprobs: list[float]
    stopped: bool


class Sampler(Protocol):
    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        """One sample per request. Temperature 0 is greedy; its log-probabilities are at 1."""


class Followed(Protocol):
    """A policy that is trained, as a sampler needs it (grpo/policy.py)."""

    @property
    def adapter(self) -> Any:
        """peft's handle on its adapter, None in full fine-tuning."""

    def adapter_state(self) -> Any:
        """Return a copy of the adapter, None in full fine-tuning."""

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by the base model's names, with the adapter added in."""


class PolicySampler(Sampler, Protocol):
    """A sampler that is given a policy's weights while that is trained, and keeps them until it is given others."""

    served: str
    """What samples now, as a server calls it: run and step. Empty in process."""

    def follow(self, policy: Followed) -> None:
        """Sample with the policy's weights from now on."""

    def begin(self, policy: Followed, others: Mapping[str, Tensor], step: int) -> None:
        """Sample with the policy's weights after that many steps, or with `others` where it held others."""

    def weights(self) -> Mapping[str, Tensor]:
        """Those that it holds in this process, by the model's names."""

    def reset(self) -> None:
        """Give back the memory of what it has read."""
