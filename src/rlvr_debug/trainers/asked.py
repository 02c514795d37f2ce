"""What a study asks of a run, in the words of a record."""

from __future__ import annotations

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.replay.settings import Sampling, Settings
from rlvr_debug.sampling.chat import Chat


def settings_of(training: TrainingSettings, environment: Environment, chat: Chat) -> Settings:
    """Return the settings that a run asks for, by which its steps are judged."""
    in_parts = training.multi_objective_aggregation == "normalize_then_sum"
    weights = tuple(environment.weights.values()) if in_parts else (1.0,)
    cap = training.importance_sampling_cap
    tokenizer = chat.tokenizer
    dtype = "bfloat16" if training.logprobs_dtype == "bfloat16" else "float32"
    return Settings(
        group_size=training.group_size,
        sampling=Sampling(
            temperature=training.temperature, max_new_tokens=environment.max_new_tokens
        ),
        max_completion_length=environment.max_new_tokens * environment.max_turns,
        max_prompt_length=training.max_prompt_length,
        truncation_side=training.truncation_side,
        max_context=environment.max_context,
        num_iterations=training.num_iterations,
        micro_batches=training.gradient_accumulation_steps,
        steps_per_generation=training.gradient_accumulation_steps,
        reward_weights=weights,
        scale_rewards=training.scale_rewards,
        advantage_epsilon=training.advantage_epsilon,
        multi_objective_aggregation=training.multi_objective_aggregation,
        mask_truncated_completions=training.mask_truncated_completions,
        loss_type=training.aggregation,
        kl_beta=training.kl_beta,
        kl_place=training.kl_place,
        kl_estimator=training.kl_estimator,
        use_bias_correction_kl=training.use_bias_correction_kl,
        clip=training.clip,
        epsilon_high=training.epsilon_high,
        delta=training.delta or None,
        importance_sampling_level=training.importance_sampling_level,
        importance_correction="token_truncate" if cap else "",
        correction_max=cap or None,
        learning_rate=training.learning_rate,
        schedule={"constant": "constant_with_warmup"}.get(
            training.lr_scheduler_type, training.lr_scheduler_type
        ),
        warmup_steps=training.warmup_steps,
        total_steps=training.steps * training.num_iterations,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        precision="autocast" if training.bf16 else dtype,
        eos_ids=tuple(sorted(chat.ends)),
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
    )
