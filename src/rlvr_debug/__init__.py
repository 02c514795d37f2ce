"""My GRPO run does not learn: why? Causes, found by experiment.

import rlvr_debug
rlvr_debug.check(trainer)    # three steps of a GRPOTrainer, each segment computed again (docs/check.md)
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["LiveCheck", "check", "expect"]


def check(trainer: Any, *, steps: int = 3, rewards: bool = True) -> Mapping[str, Any]:
    """Record a few steps of TRL's GRPOTrainer, check them, print what was found and return it.

    The trainer is as before afterwards. steps: of the optimizer. rewards: whether the reward functions are called again.
    """
    answer: Mapping[str, Any] = _live().check_trainer(trainer, steps=steps, rewards=rewards)
    return answer


def expect(**segments: Any) -> None:
    """Declare what your training computes on purpose instead of GRPO: `advantages`, `loss`, `rewards`.

    The first two are the name of an algorithm, such as loss="gmpo", or a function of what the segment reads:
    AdvantageInputs and LossInputs in rlvr_debug.replay.declared. The check compares with that. rewards="stateful" is for
    reward functions that give the same row another reward on a later call.
    """
    import_module("rlvr_debug.replay.declared").expect(**segments)


def __getattr__(name: str) -> Any:
    """Import what needs torch and transformers when it is asked for."""
    if name == "LiveCheck":
        return _live().LiveCheck
    raise AttributeError(f"module 'rlvr_debug' has no attribute {name!r}")


def _live() -> Any:
    # by name: no job of a study depends on it
    return import_module("rlvr_debug.recorders.trl.live")
