"""What a rollout asks of a sampler: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Request", "Sample", "Sampler"]


@dataclass(frozen=True)
class Request:
    """One conversation to continue. `slot` names it across turns; `row` is for scripted samplers."""

    slot: int
    ids: list[int]
    row: Any


@dataclass(frozen=True)
class Sample:
    """Sampled ids and their log-probabilities at the sampling temperature, [T] each.

    `stopped`: the last id ends the turn; otherwise the limit cut the reply.
    """

    ids: list[int]
    logprobs: list[float]
    stopped: bool


class Sampler(Protocol):
    def sample(
        self, requests: list[Request], *, temperature: float, max_new_tokens: int, seed: int
    ) -> list[Sample]:
        """One sample per request. Temperature 0 is greedy; its log-probabilities are at 1."""
        ...
