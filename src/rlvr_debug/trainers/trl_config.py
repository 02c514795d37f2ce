"""Our settings as TRL's: GRPOConfig's names, and what TRL has no counterpart for.

TRL 1.16.0, trl/trainer/grpo_config.py. Checked without importing TRL, which lives in an environment
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.settings import TrainingSettings

__all__ = ["STAGES", "TAKEN", "config_of", "unmapped"]

# what a reward function and GRPOConfig can change about TRL's own stages
STAGES = ("max_new_tokens", "score")

_SAME = (
    "learning_rate",
    "warmup_steps",
    "num_iterations",
    "gradient_accumulation_steps",
    "bf16",
    "gradient_checkpointing",
    "temperature",
    "use_bias_correction_kl",
    "epsilon_high",
    "importance_sampling_level",
    "scale_rewards",
    "multi_objective_aggregation",
    "mask_truncated_completions",
    "max_grad_norm",
    "weight_decay",
)
_RENAMED = {"kl_beta": "beta", "clip": "epsilon", "group_size": "num_generations"}
_SCHEDULES = {"constant": "constant_with_warmup"}
# fields of GRPOConfig that follow from ours: options may not say otherwise
TAKEN = frozenset(
    {
        *_SAME,
        *_RENAMED.values(),
        *("loss_type", "delta", "lr_scheduler_type", "max_steps", "per_device_train_batch_size"),
        *("logging_steps", "model_init_kwargs", "generation_kwargs", "max_tool_calling_iterations"),
        *("output_dir", "save_strategy", "report_to", "disable_tqdm", "use_cpu", "seed"),
    }
)
# TRL does it in one way
_FIXED = {
    "max_prompt_length": 0,
    "truncation_side": "left",
    "kl_estimator": "k3",
    "kl_place": "loss",
    "logprobs_dtype": "float32",
    "importance_sampling_cap": 0.0,
    "advantage_epsilon": 1e-4,
}


def unmapped(training: Mapping[str, Any]) -> list[str]:
    """The settings that TRL cannot be given, as `key value`."""
    return [
        f"{key} {training[key]}"
        for key, value in _FIXED.items()
        if training.get(key, value) != value
    ]


def config_of(settings: TrainingSettings, environment: Environment, limit: int) -> dict[str, Any]:
    """Keyword arguments of GRPOConfig, but for places. limit: tokens of a reply.

    A step of ours, a batch of rollouts, is num_iterations optimizer steps of TRL's. Raises InputError
    where the batch cannot be cut into equal micro-batches, as TRL's are.
    """
    told = asdict(settings)
    rollouts, parts = (
        settings.prompts_per_step * settings.group_size,
        settings.gradient_accumulation_steps,
    )
    if rollouts % parts:
        raise InputError(
            f"training.gradient_accumulation_steps is {parts}, expected a divisor of a batch's {rollouts} "
            "rollouts with trainer trl"
        )
    tools = {"max_tool_calling_iterations": environment.max_turns - 1} if environment.tools else {}
    return {
        **{name: told[name] for name in _SAME},
        **{theirs: told[ours] for ours, theirs in _RENAMED.items()},
        "loss_type": settings.aggregation,
        "delta": settings.delta or None,
        # transformers' "constant" has no warm-up
        "lr_scheduler_type": _SCHEDULES.get(settings.lr_scheduler_type, settings.lr_scheduler_type),
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
