"""Our settings and an environment as GRPOConfig's fields (config.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.trainers.fields import Fields

__all__ = ["FIELDS", "config_of"]

FIELDS = Fields.read(Path(__file__).with_name("config.yaml"))


def config_of(settings: TrainingSettings, environment: Environment, limit: int) -> dict[str, Any]:
    """Return keyword arguments of GRPOConfig, but for places. limit: tokens of a reply.

    Raise InputError as Fields.of does.
    """
    tools = {"max_tool_calling_iterations": environment.max_turns - 1} if environment.tools else {}
    return {
        **FIELDS.of(settings),
        "loss_type": settings.aggregation,
        "model_init_kwargs": {
            "attn_implementation": settings.attn_implementation,
            "dtype": "float32",
        },
        # of each reply, while max_completion_length counts all of them and the tools' results
        "generation_kwargs": {"max_new_tokens": limit},
        **tools,
    }
