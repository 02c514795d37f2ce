"""Our settings as TRL's: GRPOConfig's names, and what TRL has no counterpart for.

Checked without importing TRL, which lives in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.settings import TrainingSettings

__all__ = ["FIXED", "TAKEN", "config_of"]

_FIELDS = read_yaml(Path(__file__).with_name("config.yaml"))
# fields of GRPOConfig that follow from ours: options may not say otherwise
TAKEN = frozenset({*_FIELDS["same"], *_FIELDS["renamed"].values(), *_FIELDS["other"]})
# settings that TRL does in one way
FIXED: Mapping[str, Any] = _FIELDS["fixed"]


def config_of(settings: TrainingSettings, environment: Environment, limit: int) -> dict[str, Any]:
    """Keyword arguments of GRPOConfig, but for places. limit: tokens of a reply.

    A step of ours, a batch of rollouts, is num_iterations optimizer steps of TRL's. Raises InputError
    where the batch cannot be cut into equal micro-batches, as TRL's are.
    """
    told = asdict(settings)
    rollouts = settings.prompts_per_step * settings.group_size
    parts = settings.gradient_accumulation_steps
    if rollouts % parts:
        raise InputError(
            f"training.gradient_accumulation_steps is {parts}, expected a divisor of a batch's {rollouts} "
            "rollouts with trainer trl"
        )
    tools = {"max_tool_calling_iterations": environment.max_turns - 1} if environment.tools else {}
    return {
        **{name: told[name] for name in _FIELDS["same"]},
        **{theirs: told[ours] for ours, theirs in _FIELDS["renamed"].items()},
        "loss_type": settings.aggregation,
        "delta": settings.delta or None,
        "lr_scheduler_type": _FIELDS["schedules"].get(
            settings.lr_scheduler_type, settings.lr_scheduler_type
        ),
        "max_steps": settings.steps * settings.num_iterations,
        "per_device_train_batch_size": rollouts // parts,
        "logging_steps": settings.num_iterations,
        "model_init_kwargs": {
            "attn_implementation": settings.attn_implementation,
            "dtype": "float32",
        },
        # of each reply, while max_completion_length counts all of them and the tools' results
        "generation_kwargs": {"max_new_tokens": limit},
        **tools,
    }
