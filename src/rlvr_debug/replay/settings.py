"""What a trainer was asked to do, in the words of this project, whoever trained."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sampling", "Settings"]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. top_k 0, top_p 1 and min_p 0 cut nothing; repetition_penalty 1 changes nothing.

    drawn: not greedy. max_new_tokens: of a reply; 0 where it is not known. min_new_tokens: before which none may end.
    ends: tokens that end a reply; empty where they are not known. others: what else changes which tokens are drawn, in
    words; it has no reference.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    drawn: bool = True
    max_new_tokens: int = 0
    min_new_tokens: int = 0
    ends: tuple[int, ...] = ()
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Settings of GRPO. GRPO's own terms follow TRL's GRPOConfig, in which each is described.

    max_completion_length: tokens of all turns after the prompt, which dr_grpo divides by; cut_at: where what is trained
    on is cut, None for nowhere. max_prompt_length: where prompts are cut, 0 for nowhere, on truncation_side. max_context: tokens at which a
    conversation ends, with what tools said, 0 for nowhere. micro_batches: backward passes of an update; steps_per_generation: backward passes of one pass over a generation.
    kl_beta, clip: TRL's beta and epsilon. kl_place: loss, or reward, from
    which each completion's sum is taken. reference_every: optimizer steps after which the reference takes over a share of
    the policy, 0 for never. importance_correction: how the
    loss is weighted for a sampler that is not the trainer, "" for not at all; correction_max, correction_min: its
    bounds. precision: float32, bfloat16 (weights and all) or autocast (float32 weights, bfloat16 computation).
    optimizer: AdamW, Adam or SGD, as torch means them; "": whatever the updates were made by.
    dropouts: modules whose dropout was switched off for the record. first_step: optimizer steps before the record. data_rows: rows with
    prompts of their own that the data have at least, 0 where it is not known.
    """

    group_size: int
    sampling: Sampling
    max_completion_length: int
    cut_at: int | None = None
    max_prompt_length: int = 0
    truncation_side: str = "left"
    max_context: int = 0
    num_iterations: int = 1
    micro_batches: int = 1
    steps_per_generation: int = 1
    reward_weights: tuple[float, ...] = (1.0,)
    scale_rewards: str = "group"
    advantage_epsilon: float = 1e-4
    multi_objective_aggregation: str = "sum_then_normalize"
    mask_truncated_completions: bool = False
    loss_type: str = "dapo"
    kl_beta: float = 0.0
    kl_estimator: str = "k3"
    kl_place: str = "loss"
    reference_every: int = 0
    reference_share: float = 0.0
    use_bias_correction_kl: bool = False
    clip: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    importance_sampling_level: str = "token"
    importance_correction: str = ""
    correction_max: float | None = None
    correction_min: float | None = None
    off_policy_mask_threshold: float | None = None
    top_entropy_quantile: float = 1.0
    entropy_coef: float = 0.0
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo: tuple[float, float, float, float] = (2.0, 3.0, 3.0, 2.0)
    optimizer: str = ""
    learning_rate: float = 1e-6
    schedule: str = "linear"
    warmup_steps: int = 0
    total_steps: int = 1
    first_step: int = 0
    data_rows: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    precision: str = "float32"
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    template_options: tuple[tuple[str, object], ...] = ()
    dropouts: int = 0
    auxiliary_loss: bool = False
    adaptive_entropy: bool = False
