"""My GRPO run does not learn: why? Causes, found by experiment.

import rlvr_debug
rlvr_debug.check(trainer)    # three steps of a GRPOTrainer, each segment computed again (docs/check.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["check"]


def check(trainer: Any, *, steps: int = 3, rewards: bool = True) -> Mapping[str, Any]:
    """Record a few steps of TRL's GRPOTrainer, check them, print what was found and return it.

    The trainer is as before afterwards. steps: of the optimizer. rewards: whether the reward functions are called again.
    """
    from rlvr_debug.trainers.trl.live import check_trainer

    return check_trainer(trainer, steps=steps, rewards=rewards)
