"""What a run records beside its metrics: plain values from params.yaml's `diagnostics`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DiagnosticSettings"]


@dataclass(frozen=True)
class DiagnosticSettings:
    """The keys of params.yaml's `diagnostics`; its schema says what each means."""

    rollouts_every: int = 0
    rollouts_kept: int = 0
    trackers: tuple[str, ...] = ()

    def keeps_rollouts_of(self, step: int) -> bool:
        """Say whether that step's rollouts are kept. Steps count from 1, and the first is always among them."""
        return bool(self.rollouts_every) and (step == 1 or step % self.rollouts_every == 0)
