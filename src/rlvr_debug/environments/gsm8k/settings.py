"""What params.yaml says of GSM8K."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from rlvr_debug.blocks import Count
from rlvr_debug.environments.settings import DataSettings, EnvironmentSettings, numbers, parts


@dataclass(frozen=True, kw_only=True)
class Data(DataSettings):
    """Word problems in arithmetic."""

    steps: Annotated[Mapping[str, float], numbers("1", "2")] = field(
        default_factory=lambda: {"1": 0.5, "2": 0.5}
    )
    """Share of synthetic questions with 1 and 2 multiplications."""


@dataclass(frozen=True, kw_only=True)
class Settings(EnvironmentSettings):
    """What the model may do on GSM8K, and its reward."""

    max_new_tokens: Count = 48
    weights: Annotated[Mapping[str, float], parts(correct="The answer is right.")] = field(
        default_factory=lambda: {"correct": 1.0}
    )
