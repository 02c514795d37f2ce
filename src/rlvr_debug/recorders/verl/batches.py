"""What verl's driver holds and was asked for -> a generation of a record, and settings. Axes: B rows, P tokens of prompts, C of responses."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.replay.record import Batch, Call, Generation, RewardCall
from rlvr_debug.replay.settings import Sampling, Settings

_OURS = {
    "advantages": "advantages",
    "old_log_probs": "old",
    "ref_log_prob": "reference",
    "rollout_log_probs": "sampler",
    "rollout_is_weights": "importance_weights",
}
_Reply = tuple[
    int, list[int], list[int], list[float]
]  # row, what was read, what was written, log-probabilities


@dataclass
class Step:
    """What was sampled, empty where that was not seen, and what the actor is updated by, by verl's names.

    uids: the group of each row. several: which rows have several replies, where the mask says who wrote a token. again: the
    rewards of the same rows, called again.
    """

    trained: Mapping[str, Tensor]
    sampled: Mapping[str, Tensor]
    uids: Sequence[str]
    rows: Sequence[dict[str, Any]]
    several: Sequence[bool]
    again: Sequence[float] | None = None
    notes: list[str] = field(default_factory=list)


def generation_of(step: Step, size: int) -> Generation:
    """Return the generation, with the rows of a group next to each other; groups of another size are left out, with a note."""
    order = _order(step, size)
    trained = {name: tensor[order] for name, tensor in step.trained.items()}
    sampled = {name: tensor[order] for name, tensor in step.sampled.items()}
    again = None if step.again is None else [step.again[row] for row in order]
    scores = sampled.get("rm_scores", trained["token_level_scores"]).sum(-1).tolist()
    return Generation(
        rows=[step.rows[row] for row in order],
        calls=_calls(sampled, [step.several[row] for row in order]) if sampled else [],
        reward_calls=[RewardCall("reward", 0, {}, scores, again)],
        rewards=trained["token_level_rewards"].sum(-1, keepdim=True),
        batch=_batch(trained),
    )


def _order(step: Step, size: int) -> list[int]:
    counts = Counter(step.uids)
    first = {uid: place for place, uid in reversed([*enumerate(step.uids)])}
    order = sorted(range(len(step.uids)), key=lambda row: first[step.uids[row]])
    kept = [row for row in order if counts[step.uids[row]] == size]
    if not kept:  # what a group is then is to be judged
        return order[: len(order) // size * size]
    if left := len(order) - len(kept):
        step.notes.append(f"{left} rows of groups of another size than {size} are left out")
    return kept


def _batch(trained: Mapping[str, Tensor]) -> Batch:
    prompts, responses = trained["prompts"], trained["responses"]
    read, wrote = (trained["attention_mask"][:, p].long() for p in _parts(prompts.shape[1]))
    counted = trained["response_mask"].long()
    # columns of nothing but padding cost a forward pass, and say nothing
    left, right = read.any(0), wrote.any(0) | counted.any(0)
    return Batch(
        prompts[:, left].long(),
        read[:, left],
        responses[:, right].long(),
        wrote[:, right],
        counted[:, right],
        rows=torch.arange(len(prompts)),
        **{_OURS[n]: trained[n][:, right].float() for n in _OURS if n in trained},
    )


def _parts(width: int) -> tuple[slice, slice]:
    return slice(width), slice(width, None)


def _calls(sampled: Mapping[str, Tensor], several: Sequence[bool]) -> list[Call]:
    """Return the sampler's calls: the first is of all rows, each later one of those with one more reply."""
    replies = [_replies(sampled, row, more) for row, more in enumerate(several)]
    calls = []
    for number in range(max(map(len, replies), default=0)):
        turn = [own[number] for own in replies if number < len(own)]
        rows, prompts, outputs, logprobs = ([*each] for each in zip(*turn, strict=True))
        calls.append(Call(prompts, outputs, logprobs if any(logprobs) else [], rows=rows))
    return calls


def _replies(sampled: Mapping[str, Tensor], row: int, several: bool) -> list[_Reply]:
    """Return a row's replies. With one reply all of the response is it, whatever a mask says."""
    prompts, responses = sampled["prompts"][row], sampled["responses"][row]
    read, real = (sampled["attention_mask"][row, part].bool() for part in _parts(len(prompts)))
    prompt, ids = prompts[read].tolist(), responses[real].tolist()
    told = sampled.get("rollout_log_probs")
    known = [] if told is None else told[row][real].tolist()
    wrote = sampled["response_mask"][row][real].tolist() if several else [1] * len(ids)
    runs = [[*run] for own, run in groupby(range(len(ids)), wrote.__getitem__) if own] or [[]]
    return [
        (
            row,
            prompt + ids[: run[0] if run else 0],
            [ids[n] for n in run],
            [known[n] for n in run if known],
        )
        for run in runs
    ]


# --- what the configuration asks for, and by segment why it cannot be held to that

_KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_OLD, _WEIGHTS = "old log-probabilities", "importance weights"


def asked_of(
    config: Mapping[str, Any], ends: tuple[int, ...], pad: int
) -> tuple[Settings, dict[str, str]]:
    """Return what a configuration, resolved, asks for, and by segment why that has no reference. ends, pad: token ids."""
    unseen: dict[str, str] = {}
    algorithm = config["algorithm"]
    if (name := algorithm["adv_estimator"]) not in ("grpo", "grpo_vectorized"):
        unseen["advantages"] = f"no reference code for verl's estimator {name}"
    engine = config["actor_rollout_ref"]["actor"].get("fsdp_config") or {}
    mixed = engine.get("mixed_precision") or {}
    kinds = {str(mixed.get("param_dtype", "bf16")), str(engine.get("model_dtype", "fp32"))}
    settings = Settings(
        **_sizes(config),
        scale_rewards="group" if algorithm.get("norm_adv_by_std_in_grpo", True) else "none",
        advantage_epsilon=1e-6,
        **_kl(config, unseen),
        **_correction(algorithm.get("rollout_correction") or {}, unseen),
        # FSDP casts its weights to bfloat16 if nothing else is asked for
        precision="float32" if kinds <= {"fp32", "float32"} else "bfloat16",
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
            unseen["rewards"] = f"no reference code for verl's KL estimate {how}"
        if controller["type"] != "fixed":
            unseen["rewards"] = "the weight of the KL in the rewards is adaptive"
        beta, place = controller["kl_coef"], "reward"
    elif actor.get("use_kl_loss"):
        how, beta, place = actor["kl_loss_type"], actor["kl_loss_coef"], "loss"
    else:
        return {}
    return {"kl_beta": float(beta), "kl_estimator": _KL.get(how, "k3"), "kl_place": place}


def _correction(asked: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    """Return how the loss is corrected for the sampler, in TRL's words."""
    if bypass := asked.get("bypass_mode"):
        unseen[_OLD] = unseen[_WEIGHTS] = (
            "in bypass mode the sampler's log-probabilities replace the policy's"
        )
    if asked.get("rollout_rs"):
        by = asked["rollout_rs"]
        unseen["loss mask"] = f"tokens are rejected by {by}, which cannot be recomputed"
    level = asked.get("rollout_is")
    if not level or bypass:  # the loss' own ratio then corrects for the sampler
        return {"importance_correction": "token_truncate"} if bypass else {}
    if asked.get("rollout_is_batch_normalize"):
        unseen[_WEIGHTS] = "weights that are normalised over the batch cannot be recomputed"
    least, _, most = str(asked.get("rollout_is_threshold", 2.0)).rpartition("_")
    return {
        "importance_correction": f"{level}_{'mask' if least else 'truncate'}",
        "correction_max": float(most),
        "correction_min": float(least) if least else None,
    }
