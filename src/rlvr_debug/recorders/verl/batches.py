"""What verl's driver holds and was asked for -> a generation of a record, and settings. Axes: B rows, P tokens of prompts, C of responses."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.recorders.verl.steps import Kept
from rlvr_debug.replay.record import Batch, Call, Generation, MicroBatch, RewardCall, Update
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
    rewards of the same rows, called again. By optimizer step, what workers wrote: updates, of each backward pass; stepped, by
    rank, of the optimizer.
    """

    trained: Mapping[str, Tensor]
    sampled: Mapping[str, Tensor]
    uids: Sequence[str]
    rows: Sequence[dict[str, Any]]
    several: Sequence[bool]
    again: Sequence[float] | None = None
    notes: list[str] = field(default_factory=list)
    updates: Sequence[Sequence[Mapping[str, Tensor]]] = ()
    stepped: Sequence[Sequence[Kept]] = ()


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
        batch=_batch(_cut(trained)),
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


def _cut(held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors without columns of nothing but padding, which cost a forward pass and say nothing."""
    read, wrote = (held["attention_mask"][:, p] for p in _parts(held["prompts"].shape[1]))
    left, right = read.any(0), wrote.any(0) | held["response_mask"].any(0)
    wide = held["responses"].shape
    found = {n: t[:, right] for n, t in held.items() if n != "prompts" and t.shape == wide}
    mask = torch.cat([read[:, left], wrote[:, right]], 1)
    return {**found, "prompts": held["prompts"][:, left], "attention_mask": mask}


def _batch(held: Mapping[str, Tensor]) -> Batch:
    read, wrote = (held["attention_mask"][:, p] for p in _parts(held["prompts"].shape[1]))
    return Batch(
        held["prompts"].long(),
        read.long(),
        held["responses"].long(),
        wrote.long(),
        held["response_mask"].long(),
        rows=torch.arange(len(read)),
        **{_OURS[n]: held[n].float() for n in _OURS if n in held},
    )


def _parts(width: int) -> tuple[slice, slice]:
    return slice(width), slice(width, None)


def updates_of(step: Step, made: Generation, number: int) -> list[Update]:
    """Return the optimizer steps of a generation of this number."""
    assert made.batch is not None
    known, used = _rows_of(made.batch), Counter[int]()
    places: dict[object, list[int]] = {}
    for row, (ids, _) in enumerate(known):
        places.setdefault(ids, []).append(row)

    def row_of(ids: object, values: object) -> int:
        """Return a row of these tokens: of several that with these values, or else that which was trained least."""
        found = min(places[ids], key=lambda row: (known[row][1] != values, used[row]))
        used[found] += 1
        return found

    def micro_of(held: Mapping[str, Tensor]) -> MicroBatch:
        given = _batch(held)
        own = _rows_of(given)
        followed = all(ids in places for ids, _ in own)
        return MicroBatch(
            number,
            replace(given, rows=torch.tensor([row_of(*row) for row in own]) if followed else None),
            logprobs=held["log_probs"],
            entropies=held.get("entropy"),
            grad_logprobs=held.get("log_probs.grad"),
            grad_entropies=held.get("entropy.grad"),
        )

    return [Update([micro_of(_cut(held)) for held in micros]) for micros in step.updates]


def is_held(update: Update) -> bool:
    """Return whether the policy is so far from the old one that verl holds the ratio of a token, which then has no gradient."""
    return any(
        bool(((micro.logprobs - micro.given.old) * micro.given.loss_mask).abs().max() > 20)
        for micro in update.micro_batches
        if micro.logprobs is not None and micro.given.old is not None
    )


def _rows_of(batch: Batch) -> list[tuple[object, object]]:
    """Return the tokens of each row, and what the loss reads beside them."""
    parts = (batch.prompt_ids, batch.prompt_mask), (batch.completion_ids, batch.completion_mask)
    values = [each for each in (batch.advantages, batch.old, batch.reference) if each is not None]
    return [
        (
            tuple(tuple(ids[row][real[row].bool()].tolist()) for ids, real in parts),
            [each[row][batch.completion_mask[row].bool()].tolist() for each in values],
        )
        for row in range(len(batch.prompt_ids))
    ]


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

_KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3_held", "k3": "k3_held"}
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
        **_loss(config, unseen),
        **_optimizer(config["actor_rollout_ref"]["actor"].get("optim") or {}),
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
    return {"kl_beta": float(beta), "kl_estimator": _KL.get(how, "k3_held"), "kl_place": place}


def _correction(asked: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    """Return how the loss is corrected for the sampler, in TRL's words."""
    if bypass := asked.get("bypass_mode"):
        unseen[_OLD] = unseen[_WEIGHTS] = unseen["loss"] = (
            "in bypass mode the sampler's log-probabilities replace the policy's"
        )
    if asked.get("rollout_rs"):
        by = asked["rollout_rs"]
        why = f"tokens are rejected by {by}, which cannot be recomputed"
        unseen["loss mask"] = unseen["loss"] = why
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


_AGGREGATED = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum": "luspo",
    "seq-mean-token-sum-norm": "dr_grpo",
}
_LEVELS = {"vanilla": "token", "gspo": "sequence_token"}


def _loss(config: Mapping[str, Any], unseen: dict[str, str]) -> dict[str, Any]:
    """Return how the loss is asked for, in TRL's words; all workers' backward passes are those of one process."""
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    mode, how = actor["policy_loss"]["loss_mode"], actor["loss_agg_mode"]
    both = config["algorithm"].get("use_kl_in_reward") and actor.get("use_kl_loss")
    width = actor.get("loss_scale_factor") or rollout["response_length"]
    estimate = actor.get("kl_loss_type") if actor.get("use_kl_loss") else "k3"
    divided = how.endswith("norm") and width != rollout["response_length"]
    reasons = [
        (f"the gradients of {actor['strategy']} are not read", actor["strategy"][:4] != "fsdp"),
        (f"no reference code for verl's loss {mode}", mode not in _LEVELS),
        (f"no reference code for verl's aggregation {how}", how not in _AGGREGATED),
        (f"no reference code for sums that are divided by {width}", divided),
        (f"no reference code for verl's KL estimate {estimate}", estimate not in _KL),
        ("no reference code for a KL in the loss and in the rewards", both),
        ("no reference code for distillation", (config.get("distillation") or {}).get("enabled")),
    ]
    for why, holds in reasons:
        unseen |= {"loss": why} if holds else {}
    size, at_once = actor["ppo_mini_batch_size"], actor.get("ppo_micro_batch_size_per_gpu")
    if actor.get("use_dynamic_bsz") or not at_once:
        unseen["micro-batches"] = "how many there are changes with the lengths of their rows"
    count = max(1, size * rollout["n"] // (at_once or size * rollout["n"]))
    low, high = (actor.get(f"clip_ratio_{side}") for side in ("low", "high"))
    return {
        "loss_type": _AGGREGATED.get(how, how),
        "tokens_counted": "rows",
        "importance_sampling_level": _LEVELS.get(mode, "token"),
        "clip": actor["clip_ratio"] if low is None else low,
        "epsilon_high": actor["clip_ratio"] if high is None else high,
        "delta": actor.get("clip_ratio_c", 3.0) if mode == "vanilla" else None,
        "entropy_coef": float(actor["entropy_coeff"]),
        "entropy_mean": "loss",
        "micro_batches": count,
        "steps_per_generation": count * max(1, config["data"]["train_batch_size"] // size),
        "num_iterations": actor["ppo_epochs"],
    }


def _optimizer(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the optimizer is asked for. The rates of a schedule, which verl steps once for several updates, are its own."""
    more = told.get("override_optimizer_config") or {}
    asked = {"lr": 1e-3, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, **told, **more}
    warm = max(told.get("lr_warmup_steps") or 0, told.get("lr_warmup_steps_ratio") or 0) > 0
    schedule = told.get("lr_scheduler_type", "constant")
    package, kind = told.get("optimizer_impl", "torch.optim"), told.get("optimizer", "AdamW")
    own = kind if package.startswith("torch.optim") else f"{package.partition('.')[0]}.{kind}"
    return {
        "optimizer": own,
        "learning_rate": float(asked["lr"]),
        "schedule": "verl's" if warm or schedule != "constant" else "constant",
        "weight_decay": float(asked["weight_decay"]),
        "betas": tuple(asked["betas"]),
        "adam_epsilon": float(asked["eps"]),
        "max_grad_norm": float(told.get("clip_grad", 1.0)),
    }
