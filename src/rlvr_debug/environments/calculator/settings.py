"""What params.yaml says of the calculator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from rlvr_debug.blocks import Count
from rlvr_debug.environments.settings import (
    DataSettings,
    EnvironmentSettings,
    Turns,
    numbers,
    parts,
)


@dataclass(frozen=True, kw_only=True)
class Data(DataSettings):
    """Expressions, to be evaluated with a tool."""

    steps: Annotated[Mapping[str, float], numbers("1", "2", "3", "4")] = field(
        default_factory=lambda: dict.fromkeys("1234", 0.25)
    )
    """Share of synthetic questions with 1 to 4 operations."""


@dataclass(frozen=True, kw_only=True)
class Settings(EnvironmentSettings):
    """What the model may do with the calculator, and its reward."""

    max_turns: Turns = 6
    """Replies per rollout, the answer included."""
    max_new_tokens: Count = 48
    weights: Annotated[Mapping[str, float], parts(correct="The answer is right.")] = field(
        default_factory=lambda: {"correct": 1.0}
    )
