"""verl's configuration -> what its steps are held to, and by segment why they cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr_debug.replay.settings import Sampling, Settings

_KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_OLD, _WEIGHTS = "old log-probabilities", "importance weights"


def asked_of(
    config: Mapping[str, Any], ends: tuple[int, ...], pad: int
) -> tuple[Settings, dict[str, str]]:
    """Return what a configuration, resolved, asks for, and by segment why that has no reference. ends, pad: token ids."""
    unseen: dict[str, str] = {}
    algorithm = config["algorithm"]
    if (name := algorithm["adv_estimator"]) not in ("grpo", "grpo_vectorized"):
        unseen["advantages"] = f"verl's estimator {name} has no reference"
    settings = Settings(
        **_sizes(config),
        scale_rewards="group" if algorithm.get("norm_adv_by_std_in_grpo", True) else "none",
        advantage_epsilon=1e-6,
        **_kl(config, unseen),
        **_correction(algorithm.get("rollout_correction") or {}, unseen),
        precision=_precision(config["actor_rollout_ref"]["actor"].get("fsdp_config") or {}),
        eos_ids=ends,
        pad_id=pad,
    )
    return settings, unseen


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    data, rollout = config["data"], config["actor_rollout_ref"]["rollout"]
    side = data.get("truncation", "error")
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
        "template_options": tuple((data.get("apply_chat_template_kwargs") or {}).items()),
    }


def _kl(config: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    """Return the KL term, which verl may have in the rewards, in the loss, or in both: the rewards' is judged."""
    algorithm, actor = config["algorithm"], config["actor_rollout_ref"]["actor"]
    if algorithm.get("use_kl_in_reward"):
        how, controller = algorithm["kl_penalty"], algorithm["kl_ctrl"]
        if how not in _KL:
            unseen["rewards"] = f"verl's KL estimate {how} has no reference"
        if controller["type"] != "fixed":
            unseen["rewards"] = "the weight of the KL in the rewards adapts"
        beta, place = controller["kl_coef"], "reward"
    elif actor.get("use_kl_loss"):
        how, beta, place = actor["kl_loss_type"], actor["kl_loss_coef"], "loss"
    else:
        return {}
    return {"kl_beta": float(beta), "kl_estimator": _KL.get(how, "k3"), "kl_place": place}


def _correction(asked: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    """Return how the loss is corrected for the sampler, in TRL's words."""
    if bypass := asked.get("bypass_mode"):
        unseen[_OLD] = unseen[_WEIGHTS] = "in bypass mode the sampler's stand for the policy's"
    if asked.get("rollout_rs"):
        unseen["loss mask"] = (
            f"tokens are rejected by {asked['rollout_rs']}, which has no reference"
        )
    level = asked.get("rollout_is")
    if not level or bypass:  # the loss' own ratio then corrects for the sampler
        return {"importance_correction": "token_truncate"} if bypass else {}
    if asked.get("rollout_is_batch_normalize"):
        unseen[_WEIGHTS] = "weights that are normalised over the batch have no reference"
    least, _, most = str(asked.get("rollout_is_threshold", 2.0)).rpartition("_")
    return {
        "importance_correction": f"{level}_{'mask' if least else 'truncate'}",
        "correction_max": float(most),
        "correction_min": float(least) if least else None,
    }


def _precision(engine: Mapping[str, Any]) -> str:
    """Return in what the policy is computed: FSDP casts its weights to bfloat16 if nothing else is asked for."""
    mixed = engine.get("mixed_precision") or {}
    kinds = {str(mixed.get("param_dtype", "bf16")), str(engine.get("model_dtype", "fp32"))}
    return "float32" if kinds <= {"fp32", "float32"} else "bfloat16"
