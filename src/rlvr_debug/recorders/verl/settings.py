"""verl's configuration -> what its steps are held to, and by segment why they cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr_debug.replay.settings import Sampling, Settings

_KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_OLD, _WEIGHTS = "old log-probabilities", "importance weights"


@dataclass(frozen=True)
class Asked:
    """What verl was asked for. unseen: by segment, why it has no reference."""

    settings: Settings
    unseen: dict[str, str]


def asked_of(config: Mapping[str, Any], ends: tuple[int, ...], pad: int) -> Asked:
    """Return what a configuration, resolved, asks for. ends, pad: token ids."""
    unseen: dict[str, str] = {}
    return Asked(
        Settings(
            **_sizes(config),
            **_advantages(config["algorithm"], unseen),
            **_kl(config, unseen),
            **_correction(config, unseen),
            **_optimizer(config["actor_rollout_ref"]["actor"]),
            precision=precision_of(config["actor_rollout_ref"]["actor"]),
            eos_ids=ends,
            pad_id=pad,
        ),
        unseen,
    )


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    data, rollout = config["data"], config["actor_rollout_ref"]["rollout"]
    actor, side = config["actor_rollout_ref"]["actor"], data.get("truncation", "error")
    batch, mini = data["train_batch_size"], actor["ppo_mini_batch_size"]
    return {
        "group_size": rollout["n"],
        "sampling": Sampling(
            temperature=float(rollout["temperature"]),
            top_p=float(rollout["top_p"]),
            top_k=max(0, rollout["top_k"]),
            max_new_tokens=rollout["response_length"],
        ),
        "max_completion_length": rollout["response_length"],
        "max_prompt_length": data["max_prompt_length"] if side in ("left", "right") else 0,
        "truncation_side": side if side == "right" else "left",
        "num_iterations": actor.get("ppo_epochs", 1),
        "steps_per_generation": max(1, batch // mini),
        "template_options": tuple((data.get("apply_chat_template_kwargs") or {}).items()),
    }


def _advantages(algorithm: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    name = algorithm["adv_estimator"]
    if name not in ("grpo", "grpo_vectorized"):
        unseen["advantages"] = f"verl's estimator {name} has no reference"
    by_group = algorithm.get("norm_adv_by_std_in_grpo", True)
    return {"scale_rewards": "group" if by_group else "none", "advantage_epsilon": 1e-6}


def _kl(config: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    """Return the KL term, which verl may have in the rewards, in the loss, or in both."""
    algorithm, actor = config["algorithm"], config["actor_rollout_ref"]["actor"]
    if algorithm.get("use_kl_in_reward"):
        how, controller = algorithm["kl_penalty"], algorithm["kl_ctrl"]
        if how not in _KL:
            unseen["rewards"] = f"verl's KL estimate {how} has no reference"
        if controller["type"] != "fixed":
            unseen["rewards"] = "the weight of the KL in the rewards adapts"
        found, place = float(controller["kl_coef"]), "reward"
    elif actor.get("use_kl_loss"):
        how, found, place = actor["kl_loss_type"], float(actor["kl_loss_coef"]), "loss"
    else:
        return {}
    return {"kl_beta": found, "kl_estimator": _KL.get(how, "k3"), "kl_place": place}


def _correction(config: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    """Return how the loss is corrected for the sampler, in TRL's words."""
    asked = config["algorithm"].get("rollout_correction") or {}
    if asked.get("bypass_mode"):
        unseen[_OLD] = unseen[_WEIGHTS] = "in bypass mode the sampler's stand for the policy's"
    if asked.get("rollout_rs"):
        unseen["loss mask"] = (
            f"tokens are rejected by {asked['rollout_rs']}, which has no reference"
        )
    level = asked.get("rollout_is")
    if not level or asked.get("bypass_mode"):
        return {}
    if asked.get("rollout_is_batch_normalize"):
        unseen[_WEIGHTS] = "weights that are normalised over the batch have no reference"
    least, _, most = str(asked.get("rollout_is_threshold", 2.0)).rpartition("_")
    return {
        "importance_correction": f"{level}_{'mask' if least else 'truncate'}",
        "correction_max": float(most),
        "correction_min": float(least) if least else None,
    }


def _optimizer(actor: Mapping[str, Any]) -> dict[str, Any]:
    optim = actor.get("optim") or {}
    low, high = (actor.get(f"clip_ratio_{side}") for side in ("low", "high"))
    both = float(actor.get("clip_ratio", 0.2))
    return {
        "learning_rate": float(optim.get("lr", 1e-6)),
        "weight_decay": float(optim.get("weight_decay", 0.01)),
        "max_grad_norm": float(actor.get("grad_clip") or 0.0),
        "clip": both if low is None else float(low),
        "epsilon_high": both if high is None else float(high),
        "delta": float(actor.get("clip_ratio_c", 3.0)),
    }


def precision_of(actor: Mapping[str, Any]) -> str:
    """Return in what the policy is computed: FSDP casts its weights to bfloat16 if nothing else is asked for."""
    engine = actor.get("fsdp_config") or {}
    mixed = engine.get("mixed_precision") or {}
    kinds = {str(mixed.get("param_dtype", "bf16")), str(engine.get("model_dtype", "fp32"))}
    return "float32" if kinds <= {"fp32", "float32"} else "bfloat16"
