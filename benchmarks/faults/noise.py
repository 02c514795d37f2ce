"""A judge that errs: the environment as it is, but for a share of its scores."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

from rlvr_debug.environments.base import Environment, Transcript

__all__ = ["noisy"]


def noisy(environment: Environment, share: float) -> Environment:
    """With a chance of `share` every part of a score is drawn, 0 or 1. The same transcript is judged alike again."""
    return cast(Environment, _Noisy(environment, share))


class _Noisy:
    def __init__(self, environment: Environment, share: float) -> None:
        self._environment, self._share = environment, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def score(self, row: Any, transcript: Transcript) -> Mapping[str, float]:
        parts = self._environment.score(row, transcript)
        judge = random.Random(f"{row.id} {transcript.replies}")
        if judge.random() >= self._share:
            return parts
        drawn = float(judge.random() < 0.5)
        return dict.fromkeys(parts, drawn)
