"""AdamW and the schedule of its learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr_debug.grpo.settings import TrainingSettings

# transformers' own `constant` ignores the warm-up without a word
_NAMES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
SCHEDULES = tuple(_NAMES)


def build_optimizer(parameters: list[Tensor], settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return AdamW on these weights."""
    return torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )


def build_scheduler(optimizer: torch.optim.Optimizer, settings: TrainingSettings) -> Any:
    """Return a rise from 0 in warmup_steps optimizer steps, then a constant, or a fall to 0 at the last."""
    from transformers import get_scheduler

    return get_scheduler(
        _NAMES[settings.lr_scheduler_type],
        optimizer,
        num_warmup_steps=settings.warmup_steps,
        num_training_steps=settings.steps * settings.num_iterations,
    )
