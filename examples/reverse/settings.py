"""What params.yaml says of reverse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from rlvr_debug.blocks import Count
from rlvr_debug.environments.settings import DataSettings, EnvironmentSettings, parts

__all__ = ["Data", "Settings"]


@dataclass(frozen=True, kw_only=True)
class Data(DataSettings):
    """Words to be written backwards."""


@dataclass(frozen=True, kw_only=True)
class Settings(EnvironmentSettings):
    """What the model may say, and its reward."""

    max_new_tokens: Count = 48
    weights: Annotated[Mapping[str, float], parts(correct="The answer is right.")] = field(
        default_factory=lambda: {"correct": 1.0}
    )
