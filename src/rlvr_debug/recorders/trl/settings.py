"""What a GRPOConfig asks for, in this project's words, and whose code lies in it.

What a release has no field for has the value that it works with.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version

from rlvr_debug.files import read_yaml
from rlvr_debug.recorders.keeping import kind_of, own_name
from rlvr_debug.replay.settings import Sampling, Settings

# of those that the check was tried with: envs/*.txt
NEWEST = {"trl": "1.16.0", "verifiers": "0.1.6.post0"}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# what callbacks change while a run trains: an adaptive KL, a curriculum of rewards, annealing
_CHANGED = {
    "reward_weights": "reward_weights",
    "kl_beta": "beta",
    "clip": "epsilon_low",
    "epsilon_high": "epsilon_high",
    "temperature": "temperature",
}
# of options of an optimizer, the arguments
_ARGUMENTS = {"betas": ("adam_beta1", "adam_beta2"), "eps": ("adam_epsilon",)}
_DESCENT = 0.01  # a learning rate at which plain descent is meant; Adam's are a tenth of it or less
_DATA_ROWS = 1000  # of which are counted
_SCHEDULE_LENGTHS = ("num_training_steps", "T_max", "total_iters", "total_steps")
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
    ends, own_config = _ends(trainer, model), getattr(trainer, "generation_config", None)
    sampling = sampling_of(
        {
            # what the release samples with and GRPOConfig has no field for
            **{
                name: getattr(args if hasattr(args, name) else own_config, name, None)
                for name in _SAMPLING
            },
            "max_new_tokens": args.max_completion_length,
            "eos_token_id": ends,
            **has.get("generation_kwargs", {}),
        }
    )
    scale = has.get("scale_rewards", "group")
    engine = has.get("use_vllm") or getattr(trainer, "use_vllm", False)
    corrected = engine and has.get("vllm_importance_sampling_correction", False)
    mode = has.get("vllm_importance_sampling_mode", "token_truncate") if corrected else ""
    tokenizer = _tokenizer(trainer)
    # of a release that has one only: from 0.16 on it is meant over the tokens of the whole batch
    only_loss = "dapo" if Version(version("trl")) >= Version("0.16") else "grpo"
    optional = {
        name: has[name]
        for name in (
            *("num_iterations", "steps_per_generation", "max_prompt_length"),
            *("multi_objective_aggregation", "mask_truncated_completions"),
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
        cut_at=args.max_completion_length,
        max_completion_length=args.max_completion_length,
        micro_batches=args.gradient_accumulation_steps,
        reward_weights=tuple(map(float, weights)),
        scale_rewards={True: "group", False: "none"}.get(scale, scale),
        loss_type=has.get("loss_type", only_loss),
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


def in_effect(trainer: Any) -> dict[str, Any]:
    """Return those settings that a trainer reads from itself at each step, as it holds them now."""
    found: dict[str, Any] = {}
    for name, own in _CHANGED.items():
        held: Any = getattr(trainer, own, None)
        with suppress(TypeError, ValueError):  # what a subclass keeps there is its own
            found[name] = tuple(map(float, held)) if name == "reward_weights" else float(held)
    return found


def chosen_arguments(args: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(args) if getattr(args, field.name) != field.default)


def _data_rows(rows: Any) -> int:
    """Return how many prompts the data's first rows have; 0 where they are a stream or have none."""
    names = getattr(rows, "column_names", None) or ()
    if "prompt" not in names or not hasattr(rows, "__len__"):
        return 0
    return len({str(prompt) for prompt in rows[:_DATA_ROWS]["prompt"]})


def asked_optimizer(trainer: Any) -> tuple[str, dict[str, Any]]:
    """Return the optimizer's class and its options, as the arguments ask for them; "" where they could not be read."""
    try:
        told = getattr(trainer, "optimizer_cls_and_kwargs", None)
        kind, options = told or trainer.get_optimizer_cls_and_kwargs(trainer.args)
    except Exception:  # one that needs a package or the model
        return "", {}
    return kind_of(kind), {name: value for name, value in options.items() if name != "lr"}


def asked_options(trainer: Any, optimizer: Any) -> dict[str, Any]:
    """Return the options of the optimizer's groups that are asked for: by arguments, else as it was made.

    Where a method of the user's makes it and its groups, only arguments that were chosen ask for something, and what nobody
    means: no step goes uphill, and Adam's beta1 is below the root of its beta2 (arXiv 1904.09237).
    """
    options, chosen = asked_optimizer(trainer)[1], {*chosen_arguments(trainer.args)}
    if not _makes_optimizer(trainer):
        return {**optimizer.defaults, **options}
    betas = [tuple(group.get("betas") or (0.0, 1.0)) for group in optimizer.param_groups]
    never = {"betas"} if any(len(b) > 1 and b[0] ** 2 > b[1] for b in betas) else set()
    asked = {n: v for n, v in options.items() if n in never or chosen & {*_ARGUMENTS.get(n, ())}}
    return {**asked, "maximize": False}


def means_optimizer(trainer: Any, kind: str, groups: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a method of the user's means this class of optimizer: plain descent at Adam's rate moves nothing."""
    descends = [
        group.get("momentum") or group.get("initial_lr", group["lr"]) >= _DESCENT
        for group in groups
    ]
    chosen = "optim" in chosen_arguments(trainer.args)
    return (kind != "SGD" or all(descends)) and not chosen and _makes_optimizer(trainer)


def _makes_optimizer(trainer: Any) -> bool:
    return bool(_said(getattr(trainer, "create_optimizer", None), "", _libraries("trl")))


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


def schedule_pace(schedule: Any, places: Sequence[int], steps: int) -> int:
    """Return how many steps a schedule of torch's makes in an update, 1 for one that is made to be of that many.

    places: where it was at each update. steps: updates of the whole training.
    """
    schedule = getattr(schedule, "scheduler", schedule)  # of accelerate's
    kind = type(schedule)
    if kind.__module__ != "torch.optim.lr_scheduler" or kind.__name__ == "ReduceLROnPlateau":
        return 1
    pace = min((after - before for before, after in pairwise(places)), default=1)
    told = [
        vars(schedule),
        *(getattr(f, "keywords", {}) for f in vars(schedule).get("lr_lambdas", ())),
    ]
    lengths = [each.get(name, 0) for each in told for name in _SCHEDULE_LENGTHS]
    return pace if pace > 1 and max(lengths) < pace * steps else 1


def _ends(trainer: Any, model: Any) -> tuple[int, ...]:
    """Return the tokens that are to end a reply: the tokenizer's, and from TRL 1.16 on those that the model names too."""
    end, config = _tokenizer(trainer).eos_token_id, getattr(model, "generation_config", None)
    if config is None or not hasattr(trainer, "eos_token_ids"):
        return (end,)
    return tuple(sorted({end, *_listed(config.eos_token_id)}))


def _listed(ids: Any) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)


def decayed_names(trainer: Any, model: Any, *, own: bool) -> tuple[str, ...] | None:
    """Return the parameters that weight decay is asked for; None where the optimizer is the user's, or a method of
    the user's makes it and the arguments set no decay."""
    made = _makes_optimizer(trainer) and "weight_decay" not in chosen_arguments(trainer.args)
    if own or made or not hasattr(trainer, "get_decay_parameter_names"):
        return None
    return tuple(map(own_name, trainer.get_decay_parameter_names(model)))


def used_sampling(config: Any) -> Sampling:
    """Return what a generation of transformers works with. config: its GenerationConfig, as it was prepared."""
    others = ("max_new_tokens", "min_new_tokens", "do_sample", "eos_token_id")
    told = {name: getattr(config, name, None) for name in (*_SAMPLING, *_OTHERS, *others)}
    if told["min_new_tokens"]:
        told["min_length"] = None  # transformers makes it of both lengths
    return sampling_of(told)


def sampling_of(told: dict[str, Any]) -> Sampling:
    """Return settings of sampling by transformers' names; None is what changes nothing."""
    has = {name: value for name, value in told.items() if value is not None}
    # nothing, and a factor of 1, change nothing
    others = {name: value for name in _OTHERS if (value := has.get(name)) and value != 1}
    always = ("repetition_penalty", "max_new_tokens", "min_new_tokens")
    common = Sampling(
        ends=tuple(sorted(_listed(has.get("eos_token_id")))),
        others=tuple(f"{name} {value}" for name, value in others.items()),
        **{name: has[name] for name in always if name in has},
    )
    if not has.get("do_sample", True):
        return replace(common, drawn=False)
    cuts = {name: has[name] for name in ("temperature", "top_p", "min_p") if name in has}
    return replace(common, top_k=max(int(has.get("top_k", 0)), 0), **cuts)


def _tokenizer(trainer: Any) -> Any:
    processor = trainer.processing_class
    return getattr(trainer, "_tokenizer", None) or getattr(processor, "tokenizer", processor)


def precision_of(args: Any, model: Any) -> str:
    # adapters in float32 over weights in bfloat16 are computed as coarsely as these
    if any(parameter.dtype == torch.bfloat16 for parameter in model.parameters()):
        return "bfloat16"
    return "autocast" if args.bf16 else "float32"


# --- what is said before the first step


def version_note(library: str, found: str) -> str:
    """Return what is said of a release that is newer than any that was tried; "" of others."""
    newest, what = NEWEST[library], "its changes may show as deviations, or as not seen"
    newer = f"{library} {found} is newer than {newest}, the newest that this check was tried with"
    return f"{newer}: {what}" if Version(found) > Version(newest) else ""


def changed_note(made: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return which arguments were changed between the trainer's making and its training; "" for none."""
    changed = [
        f"{name} from {made[name]!r} to {value!r}"
        for name, value in now.items()
        if name in made and repr(made[name]) != repr(value)
    ]
    said = f"after the trainer was made, the script changed {', '.join(changed)} in its arguments"
    return f"{said}: the values at the start of training count" if changed else ""


# --- whose code lies in a segment: methods that are not TRL's own, functions that a trainer was given, and callbacks

_READ: Mapping[str, Mapping[str, Sequence[str]]] = read_yaml(
    Path(__file__).with_name("overrides.yaml")
)
# that read the arguments' temperature
_COOLED = ("old log-probabilities", "reference log-probabilities", "policy log-probabilities")


def overrides_of(trainer: Any, library: str) -> dict[str, str]:
    """Return by segment, in words, which code in it is no library's own, and settings of sampling that contradict the arguments."""
    from transformers import TrainerCallback

    own = _libraries(library)
    found: dict[str, list[str]] = {}

    def add(said: str, segments: Sequence[str]) -> None:
        for segment in segments if said else ():
            found.setdefault(segment, []).append(said)

    for name, segments in _READ["methods"].items():
        does = "is called for rollouts" if name == "rollout_func" else f"overrides `{name}`"
        add(_said(getattr(trainer, name, None), does, own), segments)
    for callback in trainer.callback_handler.callbacks:
        for name, segments in _READ["events"].items():
            if getattr(type(callback), name) is not getattr(TrainerCallback, name):
                add(_said(getattr(callback, name), f"has `{name}`", own), segments)
    drawn = (getattr(trainer.args, "generation_kwargs", None) or {}).get("temperature")
    if drawn not in (None, trainer.args.temperature):
        said = f"rollouts are sampled at `temperature` {drawn}, from `generation_kwargs`, but the loss divides by"
        said += f" {trainer.args.temperature}, from the arguments"
        add(said, _COOLED)
    return {segment: " and ".join(dict.fromkeys(said)) for segment, said in found.items()}


def _libraries(library: str) -> tuple[str, ...]:
    """Return where code is that is nobody's own: the file of TRL's trainer, and folders."""
    from trl import GRPOTrainer

    libraries = ("accelerate", "transformers", "rlvr_debug", *({library} - {"trl"}))
    folders = (os.path.dirname(str(import_module(name).__file__)) for name in libraries)
    return (str(inspect.getsourcefile(GRPOTrainer)), *folders)


def _said(method: Any, does: str, own: tuple[str, ...]) -> str:
    """Return whose method it is and where; "" of a library's own."""
    function = inspect.unwrap(getattr(method, "__func__", method) or str)
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith(own):
        return ""
    kind = function.__qualname__.rpartition(".")[0].rpartition("<locals>.")[2]
    whose = f"`{kind}`" if kind and not kind.endswith("<locals>") else f"`{function.__name__}`"
    return f"your {whose} {does} ({Path(code.co_filename).name}:{code.co_firstlineno})"
