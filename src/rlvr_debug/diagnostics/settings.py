"""What a run records beside its metrics: plain values, from params.yaml's `diagnostics`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TRACKERS", "DiagnosticSettings"]

# accelerate's names, which are also those of the packages
TRACKERS = ("tensorboard", "wandb")


@dataclass(frozen=True)
class DiagnosticSettings:
    """Names and meanings as in params.yaml's schema."""

    rollouts_every: int = 0
    rollouts_kept: int = 0
    trackers: tuple[str, ...] = ()

    def keeps_rollouts_of(self, step: int) -> bool:
        """Steps count from 1, and the first is always among them."""
        return bool(self.rollouts_every) and (step == 1 or step % self.rollouts_every == 0)
