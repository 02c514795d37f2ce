"""Our settings as fields of the release's GRPOConfig (config.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.trainers.fields import Fields

FIELDS = Fields.read(Path(__file__).with_name("config.yaml"))


def config_of(settings: TrainingSettings, limit: int) -> dict[str, Any]:
    """Return keyword arguments of GRPOConfig, but for places. limit: tokens of a reply.

    Raise InputError as Fields.of does.
    """
    return {
        **FIELDS.of(settings),
        # a flag there
        "scale_rewards": settings.scale_rewards == "group",
        "max_tokens": limit,
    }
