"""What a run records beside its metrics: plain values from params.yaml's `diagnostics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlvr_debug.blocks import Block, Flag, Natural, Unique


@dataclass(frozen=True)
class DiagnosticSettings(Block):
    """What a run records beside its metrics (docs/diagnostics.md)."""

    rollouts_every: Natural = 20
    """rollouts.jsonl has the first step's rollouts and those of every step that this number divides; 0: none."""
    rollouts_kept: Natural = 4
    """Rollouts of such a step, the first ones of its batch."""
    trackers: Unique[Literal["tensorboard", "wandb"]] = ()
    """Where rows of metrics go as they come, beside metrics.jsonl. Each needs a package of its name."""
    debug: Flag = False
    """Rows have debug/* too, the names of the notes that this project starts from. Of trainer own."""

    may_lack: ClassVar = ("debug",)

    def keeps_rollouts_of(self, step: int) -> bool:
        """Say whether that step's rollouts are kept. Steps count from 1, and the first is always among them."""
        return bool(self.rollouts_every) and (step == 1 or step % self.rollouts_every == 0)


NO_ROLLOUTS = DiagnosticSettings(0, 0)
# to a program, 0 kept ones are all of them (docs/trainers.md)
ALL_ROLLOUTS = DiagnosticSettings(1, 0)

# steps that a training reward is the mean of where it is shown
SMOOTHED = 5
