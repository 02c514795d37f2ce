"""What a GRPOConfig asks for, in this project's words; what a release has no field for has the value it works with."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.metadata import version
from typing import Any

import torch
from packaging.version import Version

from rlvr_debug.recorders.keeping import kind_of
from rlvr_debug.replay.settings import Sampling, Settings

__all__ = [
    "asked_optimizer",
    "asked_settings",
    "chosen_arguments",
    "decayed_names",
    "optimizer_settings",
    "precision_of",
    "sampling_of",
    "used_sampling",
]

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_DATA_ROWS = 1000  # of which are counted
_LENGTHS = ("max_new_tokens", "min_new_tokens")
# of transformers' GenerationConfig, what else changes which tokens are drawn
_OTHERS = (
    *("bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "dola_layers"),
    *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff"),
    *("exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id"),
    *("forced_eos_token_id", "guidance_scale", "min_length", "no_repeat_ngram_size", "num_beams"),
    *("penalty_alpha", "sequence_bias", "stop_strings", "suppress_tokens", "token_healing"),
    *("top_h", "typical_p", "watermarking_config"),
)


def asked_settings(trainer: Any, model: Any, dropouts: int, *, own: bool) -> Settings:
    """Return what the trainer was told. dropouts: how many modules of the model have some. own: as in optimizer_settings."""
    args = trainer.args
    has = {name: value for name, value in vars(args).items() if value is not None}
    weights = has.get("reward_weights", [1.0] * len(trainer.reward_funcs))
    ends = _ends(trainer, model)
    sampling = sampling_of(
        {
            **{name: has.get(name) for name in _SAMPLING},
            **_own_sampling(trainer),
            "max_new_tokens": args.max_completion_length,
            "eos_token_id": ends,
            **has.get("generation_kwargs", {}),
        }
    )
    # until generations served several of them, each backward pass had one of its own
    steps = has.get("steps_per_generation", 1)
    scale = has.get("scale_rewards", "group")
    engine = has.get("use_vllm") or getattr(trainer, "use_vllm", False)
    corrected = engine and has.get("vllm_importance_sampling_correction", False)
    mode = has.get("vllm_importance_sampling_mode", "token_truncate") if corrected else ""
    tokenizer = _tokenizer(trainer)
    optional = {
        name: has[name]
        for name in (
            *("num_iterations", "multi_objective_aggregation", "mask_truncated_completions"),
            *("importance_sampling_level", "delta", "off_policy_mask_threshold"),
            *("top_entropy_quantile", "entropy_coef", "use_bias_correction_kl"),
            *("sapo_temperature_pos", "sapo_temperature_neg"),
        )
        if name in has
    }
    vespo = ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")
    if all(name in has for name in vespo):
        optional["vespo"] = tuple(has[name] for name in vespo)
    if has.get("sync_ref_model"):
        optional["reference_every"] = args.ref_model_sync_steps
        optional["reference_share"] = args.ref_model_mixup_alpha
    return Settings(
        group_size=args.num_generations,
        sampling=sampling,
        max_prompt_length=has.get("max_prompt_length", 0),
        cut_at=args.max_completion_length,
        max_completion_length=args.max_completion_length,
        micro_batches=args.gradient_accumulation_steps,
        steps_per_generation=steps,
        reward_weights=tuple(map(float, weights)),
        scale_rewards={True: "group", False: "none"}.get(scale, scale),
        loss_type=has.get("loss_type", _only_loss()),
        # a generation's count is scaled to the update (compute_loss: "rescale it to one accumulation window")
        tokens_counted="generation" if "steps_per_generation" in has else "update",
        kl_beta=args.beta,
        clip=has.get("epsilon", 0.2),
        epsilon_high=has.get("epsilon_high", has.get("epsilon", 0.2)),
        importance_correction=mode,
        correction_max=has.get(
            "vllm_importance_sampling_clip_max", has.get("vllm_importance_sampling_cap")
        ),
        correction_min=has.get("vllm_importance_sampling_clip_min"),
        **optimizer_settings(trainer, own=own),
        first_step=trainer.state.global_step,
        data_rows=_data_rows(trainer.train_dataset),
        max_grad_norm=args.max_grad_norm,
        precision=precision_of(args, model),
        eos_ids=ends,
        pad_id=tokenizer.pad_token_id,
        template_options=tuple(sorted((has.get("chat_template_kwargs") or {}).items())),
        dropouts=dropouts,
        auxiliary_loss=bool(getattr(trainer, "aux_loss_enabled", False)),
        adaptive_entropy=bool(getattr(trainer, "use_adaptive_entropy", False)),
        **optional,
    )


def chosen_arguments(args: Any) -> tuple[str, ...]:
    """Return the names of arguments that are not as the class of the arguments has them."""
    return tuple(field.name for field in fields(args) if getattr(args, field.name) != field.default)


def _data_rows(rows: Any) -> int:
    """Return how many prompts the data's first rows have; 0 where they are a stream or have none."""
    names = getattr(rows, "column_names", None) or ()
    if "prompt" not in names or not hasattr(rows, "__len__"):
        return 0
    return len({str(prompt) for prompt in rows[:_DATA_ROWS]["prompt"]})


def _only_loss() -> str:
    """Return the loss of a release that has one only: from 0.16 on it is meant over the tokens of the whole batch."""
    return "dapo" if Version(version("trl")) >= Version("0.16") else "grpo"


def _own_sampling(trainer: Any) -> dict[str, Any]:
    """Return what the release samples with and GRPOConfig has no field for."""
    config = getattr(trainer, "generation_config", None)
    return {
        name: getattr(config, name)
        for name in _SAMPLING
        if config is not None and not hasattr(trainer.args, name)
    }


def asked_optimizer(trainer: Any) -> tuple[str, dict[str, Any]]:
    """Return the optimizer's class and its options, as the arguments ask for them; "" where they could not be read."""
    try:
        told = getattr(trainer, "optimizer_cls_and_kwargs", None)
        kind, options = told or trainer.get_optimizer_cls_and_kwargs(trainer.args)
    except Exception:  # one that needs a package or the model
        return "", {}
    return kind_of(kind), {name: value for name, value in options.items() if name != "lr"}


def optimizer_settings(trainer: Any, *, own: bool) -> dict[str, Any]:
    """Return what is asked of the optimizer. own: by the optimizer that the user made, not by the arguments."""
    args = trainer.args
    if not own:
        return {
            "optimizer": asked_optimizer(trainer)[0],
            "learning_rate": args.learning_rate,
            "schedule": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
            "weight_decay": args.weight_decay,
            "betas": (args.adam_beta1, args.adam_beta2),
            "adam_epsilon": args.adam_epsilon,
        }
    told = trainer.optimizer.defaults
    return {
        "learning_rate": float(told.get("lr") or 0.0),
        "schedule": "the user's",
        "weight_decay": float(told.get("weight_decay", 0.0)),
    }


def _ends(trainer: Any, model: Any) -> tuple[int, ...]:
    """Return the tokens that are to end a reply: the tokenizer's, and from TRL 1.16 on those that the model names too."""
    end = _tokenizer(trainer).eos_token_id
    config = getattr(model, "generation_config", None)
    if not hasattr(trainer, "eos_token_ids") or config is None:
        return (end,)
    return tuple(sorted({end, *_listed(config.eos_token_id)}))


def _listed(ids: Any) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def decayed_names(trainer: Any, model: Any, *, own: bool) -> tuple[str, ...] | None:
    """Return the parameters that weight decay is asked for; None where the optimizer is the user's."""
    if own or not hasattr(trainer, "get_decay_parameter_names"):
        return None
    return tuple(trainer.get_decay_parameter_names(model))


def used_sampling(config: Any) -> Sampling:
    """Return what a generation of transformers works with. config: its GenerationConfig, as it was prepared."""
    names = (*_SAMPLING, *_LENGTHS, *_OTHERS, "do_sample", "eos_token_id")
    told = {name: getattr(config, name, None) for name in names}
    if told["min_new_tokens"]:
        told["min_length"] = None  # transformers makes it of both lengths
    return sampling_of(told)


def sampling_of(told: dict[str, Any]) -> Sampling:
    """Return settings of sampling by transformers' names; None is what changes nothing."""
    others = {name: told.get(name) for name in _OTHERS}
    common = Sampling(
        repetition_penalty=_or(told.get("repetition_penalty"), 1.0),
        max_new_tokens=_or(told.get("max_new_tokens"), 0),
        min_new_tokens=_or(told.get("min_new_tokens"), 0),
        ends=tuple(sorted(_listed(told.get("eos_token_id")))),
        others=tuple(
            f"{name} {value}"
            for name, value in others.items()
            if value and value != 1  # None, nothing, and a factor of 1 change nothing
        ),
    )
    if not _or(told.get("do_sample"), True):
        return replace(common, drawn=False)
    return replace(
        common,
        temperature=_or(told.get("temperature"), 1.0),
        top_p=_or(told.get("top_p"), 1.0),
        top_k=max(int(_or(told.get("top_k"), 0)), 0),
        min_p=_or(told.get("min_p"), 0.0),
    )


def _or(value: Any, otherwise: float) -> Any:
    return otherwise if value is None else value


def _tokenizer(trainer: Any) -> Any:
    processor = trainer.processing_class
    return getattr(trainer, "_tokenizer", None) or getattr(processor, "tokenizer", processor)


def precision_of(args: Any, model: Any) -> str:
    trained = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
    if torch.bfloat16 in trained:
        return "bfloat16"
    return "autocast" if args.bf16 else "float32"
