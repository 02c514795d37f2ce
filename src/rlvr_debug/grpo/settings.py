"""What one training run is given, and what it records: plain values, from params.yaml's `training`, `diagnostics` and the arm."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import Strict

from rlvr_debug.blocks import Block, Count, Flag, Natural, NonNegative, Positive, Unique

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
class TrainingSettings(Block):
    """Settings of a training run; the defaults are the healthy control's. GRPO's own terms follow TRL's GRPOConfig."""

    steps: Count = 22
    """Batches of rollouts."""
    save_steps: Natural = 10
    """Steps between two checkpoints, from which an interrupted run goes on; 0: none."""
    prompts_per_step: Count = 16
    """Groups per batch."""
    group_size: Annotated[int, Strict(), Ge(2)] = 4
    """Rollouts per group."""
    max_prompt_length: Natural = 0
    """Tokens of a prompt, for the sampler and the trainer; 0: all of them. Evaluation sees the whole prompt."""
    truncation_side: Literal["left", "right"] = "left"
    """Where a longer prompt is cut."""
    learning_rate: NonNegative = 0.0004
    """AdamW's."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after warm-up."""
    warmup_steps: Natural = 8
    """Optimizer steps in which the learning rate rises from 0."""
    num_iterations: Count = 2
    """Optimizer steps per batch of rollouts."""
    gradient_accumulation_steps: Count = 1
    """Micro-batches that a batch is cut into."""
    lora_r: Natural = 0
    """Rank of a LoRA adapter on all linear layers but the output layer; 0: full fine-tuning."""
    lora_alpha: Count = 16
    """The adapter is scaled by lora_alpha / lora_r."""
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    """Attention of the trained model."""
    bf16: Flag = False
    """Compute in bfloat16; the weights that the optimizer moves stay in float32, those beside an adapter are held in bfloat16 too."""
    gradient_checkpointing: Flag = False
    """Compute activations again on the way back instead of keeping them."""
    logprobs_dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision that the trainer's logits are normalised in."""
    logprobs_chunk: Count = 16
    """A batch goes through the trained model in (sequences / this number) passes, rounded up."""
    temperature: Positive = 1.0
    """Of sampling and of the log-probabilities in the loss."""
    kl_beta: NonNegative = 0.04
    """Weight of the KL term against the base model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Per-token estimate of the KL."""
    kl_place: Literal["loss", "reward"] = "loss"
    """loss: a term per token; reward: each completion's sum is subtracted from its reward."""
    use_bias_correction_kl: Flag = False
    """Multiply the KL in the loss by the ratio."""
    clip: NonNegative = 0.2
    """Lower epsilon of the ratio's clipping."""
    epsilon_high: NonNegative = 0.2
    """Upper epsilon of the ratio's clipping."""
    delta: NonNegative = 0.0
    """Upper bound of the ratio where the advantage is negative, which clipping leaves open; 0: none."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """A ratio per token, or one per sequence (GSPO)."""
    importance_sampling_cap: NonNegative = 0.0
    """Cap of the weights that correct for a sampler with other log-probabilities than the trainer; 0: no correction."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Spread that advantages are divided by."""
    advantage_epsilon: NonNegative = 0.0001
    """Added to that spread."""
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = (
        "sum_then_normalize"
    )
    """Parts of the reward are summed and then scaled, or scaled by group, summed and scaled over the batch (scale_rewards is not read then)."""
    mask_truncated_completions: Flag = False
    """Leave rollouts that the token limit cut out of the loss."""
    aggregation: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "bnpo"
    """How per-token losses become one: TRL's loss_type."""
    max_grad_norm: Positive = 1.0
    """Gradients are clipped to this norm."""
    weight_decay: NonNegative = 0.0
    """AdamW's."""

    @property
    def schedule(self) -> str:
        """Return transformers' name of the schedule; its own `constant` ignores the warm-up without a word."""
        return self.lr_scheduler_type.replace("constant", "constant_with_warmup")


@dataclass(frozen=True)
class DiagnosticSettings(Block):
    """What a run records beside its metrics (docs/diagnostics.md)."""

    rollouts_every: Natural = 20
    """rollouts.jsonl has the first step's rollouts and those of every step that this number divides; 0: none."""
    rollouts_kept: Natural = 4
    """Rollouts of such a step, the first ones of its batch."""
    trackers: Unique[Literal["tensorboard", "wandb"]] = ()
    """Loggers that get each row of metrics, beside metrics.jsonl. Each needs the package of its name."""
    debug: Flag = False
    """Also log debug/*, the names in the notes that this project starts from. For trainer own."""

    may_lack: ClassVar = ("debug",)

    def keeps_rollouts_of(self, step: int) -> bool:
        """Say whether that step's rollouts are kept. Steps count from 1, and the first is always among them."""
        return bool(self.rollouts_every) and (step == 1 or step % self.rollouts_every == 0)


NO_ROLLOUTS = DiagnosticSettings(0, 0)
# to a program, 0 kept ones are all of them (docs/trainers.md)
ALL_ROLLOUTS = DiagnosticSettings(1, 0)

# steps that a training reward is the mean of where it is shown
SMOOTHED = 5
