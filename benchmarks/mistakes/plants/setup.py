"""What a training is made of before a mistake is planted in it, and the ways in which one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.stages import Stages

__all__ = ["Around", "Judge", "Parts", "Setup", "judged", "sampled", "staged"]

Parts = Mapping[str, float]
# a rollout and the environment's parts of its reward -> the parts that are trained on
Judge = Callable[[Any, Parts], Parts]


@dataclass(frozen=True)
class Setup:
    """What a training is made of.

    judges: one after the other. heldout_scale: what a held-out score is multiplied by; heldout_prompt: tokens that
    evaluation cuts prompts to, 0 for all. context: what a plant asks of the training, such as its group_size.
    """

    environment: Environment
    stages: Stages
    wrapped: tuple[Callable[[Any], Any], ...] = ()  # around the sampler
    judges: tuple[Judge, ...] = ()
    whole: tuple[Callable[[list[float]], list[float]], ...] = ()  # on all rewards of a batch
    heldout_scale: float = 1.0
    heldout_prompt: int = 0
    context: dict[str, Any] = field(default_factory=dict)


class Around:
    """What stands around another thing: what is not said here is the other's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def judged(setup: Setup, judge: Judge) -> Setup:
    return replace(setup, judges=(*setup.judges, judge))


def staged(setup: Setup, stage: str, implementation: Callable[..., Any]) -> Setup:
    return replace(setup, stages=setup.stages.with_fault(stage, implementation))


def sampled(setup: Setup, wrap: Callable[[Any], Any]) -> Setup:
    return replace(setup, wrapped=(*setup.wrapped, wrap))
