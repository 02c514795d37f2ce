"""What an experiment would cost, from the log's own timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlvr_debug.arms import runs
from rlvr_debug.diagnose.logs import Log

__all__ = ["Timing", "experiment_runs", "timing"]

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
        if self.seconds is None:
            return None
        return self.steps * self.seconds * max(self.gpus, 1) / _SECONDS_OF_A_RUN

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
        hours = count * self.seconds * max(self.gpus, 1) / _SECONDS_OF_A_RUN
        return f"{hours:.2g} {self.unit} ({count} steps)"


def timing(log: Log, gpus: int) -> Timing:
    """gpus: that the run had; 0 for a run on processors, each of which is counted as one."""
    table = log.steps
    steps = max(round(float(table.index[-1])), len(table)) if len(table) else 0
    steps = min(steps, 10**9)
    each = log.series("seconds")
    if each.size:
        # where a row stands for several steps it may have their sum or their mean: the mean is what TRL logs
        return Timing(
            steps, float(np.median(each)), f"the median of {log.sources['seconds']}", gpus
        )
    since = log.series("run_seconds")
    if since.size >= 3 and (np.diff(since) > 0).all() and "run_seconds" in table:
        known = table["run_seconds"].dropna()
        rates = np.diff(known.to_numpy()) / np.diff(known.index.to_numpy(dtype=float))
        return Timing(
            steps, float(np.median(rates)), f"differences of {log.sources['run_seconds']}", gpus
        )
    if since.size and steps:
        return Timing(steps, float(since.max()) / steps, log.sources["run_seconds"], gpus)
    return Timing(steps, None, "nothing that was logged", gpus)


def experiment_runs(params: Mapping[str, Any]) -> int:
    """Trainings that a study of these parameters takes: arms times seeds, without those told the same."""
    return sum(run.arm == run.trained_as for run in runs(dict(params)))
