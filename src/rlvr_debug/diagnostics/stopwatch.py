"""Seconds by stage."""

from __future__ import annotations

import time

__all__ = ["Stopwatch"]


class Stopwatch:
    """Runs from the start; each lap is booked on the stage that it was spent in."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now
