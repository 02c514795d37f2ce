"""What the jobs of a study are told, but for trainings (trainers/base.py): plain values, and files by their paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Evaluation", "Sampling", "Serving", "Trained"]


@dataclass(frozen=True)
class Sampling:
    """Who answers the rollouts of a job.

    sampler: that of params.yaml. server: its settings, `server` and, for vllm, `vllm` in it. endpoint: the file
    of a server that several jobs share; without, a job whose sampler is a server starts one of its own.
    """

    sampler: str = "in-process"
    server: Mapping[str, Any] = field(default_factory=dict)
    endpoint: Path | None = None

    @property
    def served(self) -> bool:
        """Whether a server answers, and not the job's own process."""
        return self.sampler != "in-process"


@dataclass(frozen=True)
class Trained:
    """What a server must be ready for that follows policies while they are trained.

    lora_r: the highest rank of their adapters, 0 where all weights are trained; policies: how many at once.
    """

    lora_r: int
    policies: int


@dataclass(frozen=True)
class Serving:
    """The job of a server that others share. trained: None where it has the base model."""

    base_model: Path
    sampling: Sampling
    trained: Trained | None


@dataclass(frozen=True)
class Evaluation:
    """A held-out evaluation. settings: of the environment. weights: trained ones; None for the base model's."""

    environment: str
    settings: Mapping[str, Any]
    base_model: Path
    weights: Path | None
    rows: Path
    temperature: float
    seed: int
    sampling: Sampling
