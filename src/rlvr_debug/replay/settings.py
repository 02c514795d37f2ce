"""What a trainer was asked to do, in the words of this project, whoever trained."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

from annotated_types import Ge, Le, MinLen
from pydantic import BeforeValidator, Strict, WithJsonSchema

from rlvr_debug.blocks import Block, Flag, NonNegative, OneOf, Positive, Share, Text

_MOST = 2**31 - 1
Index = Annotated[int, Strict(), Ge(0), Le(_MOST)]
Whole = Annotated[int, Strict(), Ge(1), Le(_MOST)]
Number = Annotated[float, Strict()]
Name = Annotated[Text, MinLen(1)]
Options = Annotated[
    tuple[tuple[str, object], ...],
    BeforeValidator(lambda told: tuple(told.items()) if isinstance(told, Mapping) else told),
    WithJsonSchema({"type": "object"}),
]


class Part(Block):
    """A part of a record. A file leaves out what has a default."""

    @classmethod
    def required(cls, given: Mapping[str, Any]) -> list[str]:
        kind: Any = cls
        return [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        found = super().__get_pydantic_json_schema__(schema, handler)
        found.pop("description", None)  # what it is where it stands says the field
        return found


@dataclass(frozen=True)
class Sampling(Part):
    """How tokens are drawn. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 change nothing.

    drawn: not greedy. max_new_tokens: of a reply, 0 where not known. min_new_tokens: before which none may end. ends: tokens
    that end a reply. others: what else changes which tokens are drawn, in words; it has no reference.
    """

    temperature: Positive = 1.0
    top_p: Share = 1.0
    top_k: Index = 0
    min_p: Share = 0.0
    repetition_penalty: Positive = 1.0
    drawn: Flag = True
    max_new_tokens: Index = 0
    min_new_tokens: Index = 0
    ends: tuple[Index, ...] = ()
    others: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Settings(Part):
    """Settings of GRPO, in the words of TRL's GRPOConfig; kl_beta and clip are its beta and epsilon."""

    group_size: Whole
    """rollouts of one row"""
    sampling: Sampling
    """settings of the sampler"""
    max_completion_length: Whole
    """the most tokens after the prompt, of all turns together; dr_grpo divides by it"""
    cut_at: Whole | None = None
    """tokens after which the trained sequence is cut; null for nowhere"""
    max_prompt_length: Index = 0
    """tokens at which prompts are cut; 0 for nowhere"""
    max_context: Index = 0
    """tokens, tools' answers included, at which a conversation ends; 0 for nowhere"""
    truncation_side: Annotated[str, OneOf(lambda: ("left", "right"))] = "left"
    """the side that prompts are cut on"""
    num_iterations: Whole = 1
    """passes over a generation"""
    micro_batches: Whole = 1
    """backward passes of an update"""
    steps_per_generation: Whole = 1
    """backward passes of one pass over a generation"""
    reward_weights: Annotated[tuple[Number, ...], MinLen(1)] = (1.0,)
    """one for each reward function"""
    scale_rewards: Annotated[str, OneOf(lambda: ("group", "batch", "none"))] = "group"
    """the spread that advantages are divided by"""
    advantage_epsilon: NonNegative = 1e-4
    """is added to that spread"""
    multi_objective_aggregation: Annotated[
        str, OneOf(lambda: ("sum_then_normalize", "normalize_then_sum"))
    ] = "sum_then_normalize"
    """how several reward functions become one advantage"""
    mask_truncated_completions: Flag = False
    """whether replies that the limit cut are left out of the loss"""
    loss_type: Name = "dapo"
    """grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo or vespo, as TRL means them; the loss of any other is not seen"""
    tokens_counted: Annotated[str, OneOf(lambda: ("update", "generation", "rows"))] = "update"
    """where dapo, cispo and vespo count tokens: over all generations of an update, over each, or over the update's rows"""
    kl_beta: Number = 0.0
    """the weight of the KL term"""
    kl_estimator: Annotated[str, OneOf(lambda: ("k1", "k2", "k3", "k3_held"))] = "k3"
    """the formula that estimates it; k3_held is k3, at most 10 for a token"""
    kl_place: Annotated[str, OneOf(lambda: ("loss", "reward"))] = "loss"
    """where it is added"""
    reference_every: Index = 0
    """optimizer steps between two moves of the reference towards the policy; 0 for never"""
    reference_share: Share = 0.0
    """the share of the policy in such a move"""
    use_bias_correction_kl: Flag = False
    """whether it is weighted by the ratio"""
    clip: NonNegative = 0.2
    """how far below 1 the ratio is clipped"""
    epsilon_high: NonNegative = 0.2
    """how far above"""
    delta: Number | None = None
    """a bound of the ratio on both sides of the clip; null for none"""
    importance_sampling_level: Annotated[
        str, OneOf(lambda: ("token", "sequence", "sequence_token"))
    ] = "token"
    """whether each token has a ratio, or each sequence, or each token with its sequence's number"""
    importance_correction: Annotated[
        str,
        OneOf(lambda: ("", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")),
    ] = ""
    """TRL's name of the weight that corrects for the sampler; empty for none"""
    correction_max: Number | None = None
    """its upper bound; null for none"""
    correction_min: Number | None = None
    """its lower bound; null for none"""
    off_policy_mask_threshold: Number | None = None
    """the mean log-ratio above which a sequence with a negative advantage is left out; null for none"""
    top_entropy_quantile: Share = 1.0
    """the share of tokens that count, by highest entropy"""
    entropy_coef: Number = 0.0
    """the weight of the entropy bonus"""
    entropy_mean: Annotated[str, OneOf(lambda: ("micro-batch", "loss"))] = "micro-batch"
    """over what its mean is: the tokens of a micro-batch, or what the loss's is"""
    sapo_temperature_pos: Positive = 1.0
    """of sapo, for gains"""
    sapo_temperature_neg: Positive = 1.05
    """of sapo, for losses"""
    vespo: tuple[Number, Number, Number, Number] = (2.0, 3.0, 3.0, 2.0)
    """of vespo: k and lambda for gains, then for losses"""
    optimizer: Text = ""
    """the optimizer asked for; empty: the class in the updates"""
    learning_rate: Number = 1e-6
    """the highest rate of the schedule"""
    schedule: Text = "linear"
    """constant, constant_with_warmup, linear or cosine; for any other, each group's own rate counts"""
    schedule_pace: Whole = 1
    """steps that the schedule makes in an update"""
    warmup_steps: Index = 0
    """optimizer steps in which the rate rises"""
    total_steps: Index = 1
    """optimizer steps of the whole run"""
    first_step: Index = 0
    """optimizer steps before the record"""
    data_rows: Index = 0
    """distinct prompts in the data, at least; 0 if unknown"""
    weight_decay: Number = 0.0
    """of parameter groups that set no other"""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """of Adam and AdamW"""
    adam_epsilon: NonNegative = 1e-8
    """of Adam and AdamW"""
    max_grad_norm: NonNegative = 1.0
    """the limit of the gradient's norm; 0 for none"""
    precision: Annotated[str, OneOf(lambda: ("float32", "bfloat16", "autocast"))] = "float32"
    """float32, bfloat16 (weights and all) or autocast (weights in float32, computed in bfloat16)"""
    eos_ids: tuple[Index, ...] = ()
    """tokens that end a reply"""
    pad_id: Index = 0
    """the token of padding"""
    template_options: Options = ()
    """further arguments of the chat template"""
    dropouts: Index = 0
    """dropouts that were switched off for the record"""
    auxiliary_loss: Flag = False
    """whether a router's loss is added, which has no reference"""
    adaptive_entropy: Flag = False
    """whether the entropy bonus adapts, which has no reference"""
