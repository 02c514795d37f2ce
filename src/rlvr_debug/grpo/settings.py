"""What one training run is given: plain values, from params.yaml's `training` and the arm."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STAGES", "TrainingSettings"]

# the stages of GRPO that have names, in the order in which they run (stages.py implements them)
STAGES = (
    "trained_prompt",
    "trained_tool_turn",
    "loss_mask",
    "attention_mask",
    "advantages",
    "kl",
    "sync",
)


@dataclass(frozen=True)
class TrainingSettings:
    """Names and meanings as in params.yaml's schema; GRPO's own terms follow TRL's GRPOConfig."""

    steps: int
    prompts_per_step: int
    group_size: int
    learning_rate: float
    temperature: float
    kl_beta: float
    clip: float
    scale_rewards: str
    advantage_epsilon: float
    aggregation: str
    max_grad_norm: float
    weight_decay: float
