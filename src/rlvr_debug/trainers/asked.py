"""What a study tells a run, in the words of a record."""

from __future__ import annotations

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.sampling.chat import Chat


def settings_of(told: TrainingSettings, environment: Environment, chat: Chat) -> Settings:
    """Return what a run is told, for what its steps are held to."""
    in_parts = told.multi_objective_aggregation == "normalize_then_sum"
    weights = tuple(environment.weights.values()) if in_parts else (1.0,)
    cap = told.importance_sampling_cap
    tokenizer = chat.tokenizer
    dtype = "bfloat16" if told.logprobs_dtype == "bfloat16" else "float32"
    return Settings(
        group_size=told.group_size,
        sampling=Sampling(temperature=told.temperature, max_new_tokens=environment.max_new_tokens),
        max_completion_length=environment.max_new_tokens * environment.max_turns,
        max_prompt_length=told.max_prompt_length,
        truncation_side=told.truncation_side,
        max_context=environment.max_context,
        num_iterations=told.num_iterations,
        micro_batches=told.gradient_accumulation_steps,
        steps_per_generation=told.gradient_accumulation_steps,
        reward_weights=weights,
        scale_rewards=told.scale_rewards,
        advantage_epsilon=told.advantage_epsilon,
        multi_objective_aggregation=told.multi_objective_aggregation,
        mask_truncated_completions=told.mask_truncated_completions,
        loss_type=told.aggregation,
        kl_beta=told.kl_beta,
        kl_place=told.kl_place,
        kl_estimator=told.kl_estimator,
        use_bias_correction_kl=told.use_bias_correction_kl,
        clip=told.clip,
        epsilon_high=told.epsilon_high,
        delta=told.delta or None,
        importance_sampling_level=told.importance_sampling_level,
        importance_correction="token_truncate" if cap else "",
        correction_max=cap or None,
        learning_rate=told.learning_rate,
        schedule={"constant": "constant_with_warmup"}.get(
            told.lr_scheduler_type, told.lr_scheduler_type
        ),
        warmup_steps=told.warmup_steps,
        total_steps=told.steps * told.num_iterations,
        weight_decay=told.weight_decay,
        max_grad_norm=told.max_grad_norm,
        precision="autocast" if told.bf16 else dtype,
        eos_ids=tuple(sorted(chat.ends)),
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
    )
