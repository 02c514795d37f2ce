"""What an experiment would cost, from the log's own timing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlvr_debug.logs.log import Log

__all__ = ["Timing", "timing"]

# shares of a gap between two rows that a run was interrupted in are not counted: the median is
_SECONDS_OF_A_RUN = 3600.0


@dataclass(frozen=True)
class Timing:
    """Of the logged run: its steps, and seconds per step where they were logged, with their source."""

    steps: int
    seconds: float | None
    source: str
    gpus: int

    @property
    def hours(self) -> float | None:
        """GPU-hours of one such run; CPU-hours without a GPU."""
        return None if self.seconds is None else self._hours(self.steps * self.seconds)

    def _hours(self, seconds: float) -> float:
        return seconds * max(self.gpus, 1) / _SECONDS_OF_A_RUN

    @property
    def unit(self) -> str:
        return "GPU-hours" if self.gpus else "CPU-hours"

    def text(self, count: int) -> str:
        """What `count` such runs cost."""
        times = f"{count} runs of this length" if count != 1 else "1 run of this length"
        if self.hours is None:
            return f"{times} (no seconds per step are logged: multiples of one run)"
        return f"{count * self.hours:.2g} {self.unit} ({times})"

    def steps_text(self, count: int) -> str:
        """What `count` steps cost."""
        if self.seconds is None:
            return f"{count} steps"
        return f"{self._hours(count * self.seconds):.2g} {self.unit} ({count} steps)"


def timing(log: Log, gpus: int) -> Timing:
    """gpus: that the run had; 0 for a run on processors, each of which is counted as one."""
    table = log.steps
    steps = max(round(float(table.index[-1])), len(table)) if len(table) else 0
    steps = min(steps, 10**9)
    each, since = log.series("seconds"), log.series("run_seconds")
    seconds, source = None, "nothing that was logged"
    if each.size:
        # where a row stands for several steps it may have their sum or their mean: the mean is what TRL logs
        seconds, source = float(np.median(each)), f"the median of {log.sources['seconds']}"
    elif since.size >= 3 and (np.diff(since) > 0).all():
        known = table["run_seconds"].dropna()
        rates = np.diff(known.to_numpy()) / np.diff(known.index.to_numpy(dtype=float))
        seconds, source = float(np.median(rates)), f"differences of {log.sources['run_seconds']}"
    elif since.size and steps:
        seconds, source = float(since.max()) / steps, log.sources["run_seconds"]
    return Timing(steps, seconds, source, gpus)
