"""rewards: the functions, called again, say the same, of each completion for itself, and it is what was used."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rlvr_debug.replay import judge
from rlvr_debug.replay.finding import need, seen
from rlvr_debug.replay.record import Generation, Record, RewardCall
from rlvr_debug.replay.rollouts import Rollout, rollouts
from rlvr_debug.replay.segments.loss_formula import kl_estimate

_SHIFT = 2.0  # of a difference's standard deviation: its mean, where it is no noise
_NOISES = 4.0  # of a repeated call's difference, which a call in another order does not differ by

# how a sentence begins that says what is wrong with a function
Wrong = Literal[
    "is given other tokens than were sampled",
    "is given other text than was sampled",
    "is given other messages than the conversation's",
    "is given the column",
    "is given environments of other rows",
    "is not deterministic",
    "returns the rewards in another order than the completions",
    "depends on the order of the batch",
    "depends on its process or on the rows that it has",
    "returns what evaluation does not",
    "returns what is not used: rewards changed after the call",
]


def rewards(record: Record, _: object) -> Iterator[judge.Instance]:
    called = any(generation.reward_calls for generation in record.generations)
    need(called, "no call of a reward function was recorded")
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings) if generation.calls else []
        for call in generation.reward_calls:
            said_again = (call.again, call.backwards, call.alone, call.evaluated)
            known = generation.rewards is not None or sampled or any(said_again)
            need(known, "nothing was recorded to compare a reward function's output with")
            if "rewards" in record.own.declared:  # its state is another on each call
                call = replace(call, again=None, backwards=None, alone=None, together=None)
            found = _wrong(record, generation, sampled, call)
            sentences = " and ".join(map("".join, found.items()))
            said = f"{call.name} {sentences}"
            yield judge.Instance(f"generation {number + 1}", partial(judge.one_of, found), said)


def _wrong(
    record: Record,
    generation: Generation,
    sampled: list[Rollout],
    call: RewardCall,
) -> dict[Wrong, str]:
    """Return what is wrong with a call, as predicates of its function: how each begins, and how it ends."""
    columns, got = call.columns, call.returned
    found: dict[Wrong, str] = {}
    ids = columns.get("completion_ids")
    scored = _scored_rows(generation, len(got))
    if not sampled:
        pass  # what the sampler wrote was not seen
    elif ids is not None and any(list(ids[n]) != sampled[n].completion for n in scored):
        found["is given other tokens than were sampled"] = ""
    elif _other_text(record, sampled, columns.get("completions")):
        found["is given other text than was sampled"] = ""
    elif generation.messages not in (None, columns.get("completions", generation.messages)):
        found["is given other messages than the conversation's"] = ""
    kept = {*(generation.rows[0] if generation.rows else ())}
    for name in [n for n in columns if n in kept - {"prompt", "completion", "completion_ids"}]:
        if list(columns[name]) != [row[name] for row in generation.rows]:
            found.setdefault("is given the column", f" {name} of other rows")
    if shared := sum(own is False for own in columns.get("environments", ())):
        said = f": {shared} of {len(got)} rows share their state with a row that was reset later"
        found["is given environments of other rows"] = said
    if _in_another_order(call):
        found["returns the rewards in another order than the completions"] = ""
    elif call.again is not None and not _same(call.again, got):
        off, *others = [_off(each, got) for each in _repeats(call)]
        if call.in_training_mode:
            found["is not deterministic"] = ": it is a model in training mode"
        elif not _is_noise(record, call.index):
            found["is not deterministic"] = ""
        elif any(each > _NOISES * off for each in others):
            found["depends on the order of the batch"] = ", by more than its noise"
    elif call.backwards is not None and not _same(call.backwards, got):
        # what differs alone only is meant: a reward relative to the others, whatever their order
        found["depends on the order of the batch"] = ""
    settled = call.again is None or _same(call.again, got)
    if call.together is not None and settled and not _same(call.together, got):
        found["depends on its process or on the rows that it has"] = ""
    if call.evaluated is not None and not _same(call.evaluated, got):
        found["returns what evaluation does not"] = ""
    if generation.rewards is not None and not _used(record, generation, call):
        found["returns what is not used: rewards changed after the call"] = ""
    return found


def _in_another_order(call: RewardCall) -> bool:
    """Return whether the rewards are those of the completions one by one, but not in their order, which may be another each time."""
    if call.alone is None or _same(call.alone, call.returned):
        return False
    together = (each for each in (call.returned, call.again) if each is not None)
    return all(_same(sorted(each), sorted(call.alone)) for each in together)


def _repeats(call: RewardCall) -> list[list[float]]:
    """Return what other calls for the same rows said: first the same call again."""
    return [each for each in (call.again, call.backwards, call.alone) if each is not None]


def _off(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the root of the mean square difference, of the rows that have a reward in both."""
    off = torch.tensor(one).double() - torch.tensor(other).double()
    return float(off[off.isfinite()].square().mean().sqrt().nan_to_num())


def _is_noise(record: Record, index: int) -> bool:
    """Return whether other calls of a function say the same but for noise.

    They do not where one shifts all rewards, as what keeps a state does, or where they are no more alike than chance makes
    them: by the correlation within the rows of so many calls, and twice its standard error.
    """
    calls = [c for g in record.generations for c in g.reward_calls if c.index == index and c.again]
    for call in calls:
        moved = torch.tensor(call.again).double() - torch.tensor(call.returned).double()
        if abs(moved.nanmean()) > _SHIFT * moved[moved.isfinite()].std():
            return False
    count = min(len(_repeats(call)) for call in calls) + 1  # calls
    told = [[call.returned, *_repeats(call)][:count] for call in calls]
    rewards = torch.cat([torch.tensor(each).double() for each in told], 1)
    rewards = rewards[:, rewards.isfinite().all(0)]  # [calls, rows]
    within, between = rewards.var(0).mean(), count * rewards.mean(0).var()
    alike = (between - within) / (between + (count - 1) * within)
    error = (2 / (count * (count - 1) * max(rewards.shape[1] - 1, 1))) ** 0.5
    return bool(alike > 2 * error)


def _scored_rows(generation: Generation, count: int) -> list[int]:
    """Return the rows that are not left out: a trainer leaves a row out that has none of the rewards."""
    rewards = generation.rewards
    if rewards is None or len(rewards) != count:
        return [*range(count)]
    return (~rewards.isnan().all(1)).nonzero()[:, 0].tolist()


def _used(record: Record, generation: Generation, call: RewardCall) -> bool:
    """Return whether what was returned is what was used, less the KL where that is in the reward."""
    used = seen(generation.rewards)[:, call.index].double()
    settings, batch = record.settings, generation.batch
    if not settings.kl_beta or settings.kl_place == "loss":
        scored = _scored_rows(generation, len(used))
        return _same(used[scored].tolist(), [call.returned[n] for n in scored])
    if batch is None or batch.old is None or batch.reference is None:
        return True  # cannot be told
    old, reference, mask = batch.old.double(), batch.reference.double(), batch.loss_mask

    def less_kl(by: float) -> Tensor:
        kl = kl_estimate(settings.kl_estimator, old * by, reference)
        return torch.tensor(call.returned).double() - settings.kl_beta * (kl * mask).sum(1)

    wanted, unit = less_kl(1.0), judge.unit_of((batch.old, batch.reference))
    tolerance = judge.shaken_by(unit, judge.noise_of(less_kl, unit), wanted.abs().clamp(min=1))
    return judge.elementwise(used, wanted, tolerance).share <= 1


def _other_text(
    record: Record, sampled: list[Rollout], completions: Sequence[object] | None
) -> bool:
    """Return whether the text that was given is not what was sampled; what cannot be told is not."""
    if not completions or record.tokenizer is None or any(len(each.turns) > 1 for each in sampled):
        return False
    texts = record.tokenizer.batch_decode(
        [each.completion for each in sampled], skip_special_tokens=True
    )
    given = []
    for each in completions:
        message = each[0] if isinstance(each, list) and len(each) == 1 else each
        if isinstance(message, dict):
            if set(message) - {"role", "content"}:
                return False  # parsed into calls or reasoning
            message = message.get("content")
        given.append(message)
    return any(
        isinstance(text, str) and text != own and text != _parsed(record, each)
        for text, own, each in zip(given, texts, sampled, strict=False)
    )


def _parsed(record: Record, rollout: Rollout) -> object:
    """Return what the tokenizer's own template of replies reads as a reply's content; None where it has none or does not fit."""
    tokenizer = record.tokenizer
    if getattr(tokenizer, "response_template", None) is not None:
        told = {"prefix": rollout.prompt}  # transformers 5.13
    elif getattr(tokenizer, "response_schema", None) is not None:
        told = {}
    else:
        return None
    try:
        parsed = tokenizer.parse_response(rollout.completion, **told) or {}
    except Exception:  # a template of the user's, on whatever the model wrote
        return None
    content = parsed.get("content") or ""
    return content.removesuffix(tokenizer.eos_token) if isinstance(content, str) else content


def _same(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(
        (math.isnan(a) and math.isnan(b))
        or math.isclose(a, b, rel_tol=judge.LAST_PLACES, abs_tol=judge.LAST_PLACES)
        for a, b in zip(one, other, strict=True)
    )
