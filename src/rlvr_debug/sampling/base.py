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


class PolicySampler(Sampler):
    """A sampler that is given a policy's weights while that is trained, and keeps them until it is given others."""

    served = ""
    """What samples now, as a server calls it: run and step. Empty in process."""

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy new weights in, and forget what the old ones had computed."""

    def follow(self, policy: Any) -> None:
        """Sample with the weights of the policy (grpo/policy.py) from now on."""
        self.load(policy.weights())

    def begin(self, policy: Any, others: Mapping[str, Tensor], step: int) -> None:
        """Sample with the policy's weights after that many steps, or with `others` where it held others."""
        self.load({**policy.weights(), **others})

    def weights(self) -> Mapping[str, Tensor]:
        """Return those that it holds in this process, by the model's names; a caller changes nothing in them."""
        return {}

    def reset(self) -> None:
        """Give back the memory of what it has read."""
