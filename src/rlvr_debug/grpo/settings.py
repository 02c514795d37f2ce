"""What one training run is given: plain values, from params.yaml's `training` and the arm."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STAGES", "TrainingSettings"]

# the stages of GRPO that have names, in the order in which they run (stages.py implements them)
STAGES = (
    "max_new_tokens",
    "trained_prompt",
    "trained_tool_turn",
    "loss_mask",
    "attention_mask",
    "score",
    "advantages",
    "assign",
    "logprobs",
    "importance_ratio",
    "clipped_objective",
    "importance_weights",
    "kl",
    "aggregate",
    "optimizer_step",
    "sync",
    "saved_weights",
)


@dataclass(frozen=True)
class TrainingSettings:
    """The keys of params.yaml's `training`; its schema says what each means.

    GRPO's own terms follow TRL's GRPOConfig.
    """

    steps: int
    save_steps: int
    prompts_per_step: int
    group_size: int
    max_prompt_length: int
    truncation_side: str
    learning_rate: float
    lr_scheduler_type: str
    warmup_steps: int
    num_iterations: int
    gradient_accumulation_steps: int
    lora_r: int
    lora_alpha: int
    attn_implementation: str
    bf16: bool
    gradient_checkpointing: bool
    logprobs_dtype: str
    logprobs_chunk: int
    temperature: float
    kl_beta: float
    kl_estimator: str
    kl_place: str
    use_bias_correction_kl: bool
    clip: float
    epsilon_high: float
    delta: float
    importance_sampling_level: str
    importance_sampling_cap: float
    scale_rewards: str
    advantage_epsilon: float
    multi_objective_aggregation: str
    mask_truncated_completions: bool
    aggregation: str
    max_grad_norm: float
    weight_decay: float
