"""What a study asks of a run, in the words of a record."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.sampling.chat import Chat


def settings_of(training: TrainingSettings, environment: Environment, chat: Chat) -> Settings:
    """Return the settings that a run asks for, by which its steps are judged."""
    in_parts = training.multi_objective_aggregation == "normalize_then_sum"
    cap = training.importance_sampling_cap
    dtype = "bfloat16" if training.logprobs_dtype == "bfloat16" else "float32"
    names = {field.name for field in fields(Settings)}
    told: dict[str, Any] = {
        # those of one name mean the same
        **{name: value for name, value in vars(training).items() if name in names},
        "sampling": Sampling(training.temperature, max_new_tokens=environment.max_new_tokens),
        "max_completion_length": environment.max_new_tokens * environment.max_turns,
        "max_context": environment.max_context,
        "micro_batches": training.gradient_accumulation_steps,
        "steps_per_generation": training.gradient_accumulation_steps,
        "reward_weights": tuple(environment.weights.values()) if in_parts else (1.0,),
        "loss_type": training.aggregation,
        "delta": training.delta or None,
        "importance_correction": "token_truncate" if cap else "",
        "correction_max": cap or None,
        "schedule": training.schedule,
        "total_steps": training.steps * training.num_iterations,
        "precision": "autocast" if training.bf16 else dtype,
        "eos_ids": tuple(sorted(chat.ends)),
        "pad_id": chat.tokenizer.pad_token_id or 0,
    }
    return Settings(**told)
