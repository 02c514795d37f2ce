"""My GRPO run does not learn: why? Causes, found by experiment.

import rlvr_debug
rlvr_debug.check(trainer)    # three steps of a GRPOTrainer, each segment computed again (docs/check.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["check"]


def check(trainer: Any, *, steps: int = 3, rewards: bool = True) -> Mapping[str, Any]:
    """Record a few steps of TRL's GRPOTrainer, check them, print what was found and return it.

    The trainer is as before afterwards. steps: of the optimizer. rewards: whether the reward functions are called again.
    """
    # by name: no job of a study depends on it
    live = import_module("rlvr_debug.trainers.trl.live")
    found: Mapping[str, Any] = live.check_trainer(trainer, steps=steps, rewards=rewards)
    return found
