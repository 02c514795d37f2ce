"""rewards: the functions, called again, say the same, of each completion for itself, and it is what was used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import (
    LAST_PLACES,
    SHAKES,
    Gap,
    Instance,
    Segment,
    different,
    elementwise,
    shaken_by,
    unit_of,
)
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Generation, Record, RewardCall
from rlvr_debug.replay.rollouts import Rollout, rollouts
from rlvr_debug.replay.segments.loss_formula import kl_estimate
from rlvr_debug.replay.variants import knobs_of

# how a sentence begins that says what is wrong with a function
_Wrong = Literal[
    "is given other tokens than were sampled",
    "is given other text than was sampled",
    "is given other messages than the conversation's",
    "is given the column",
    "is not deterministic",
    "returns the rewards in another order than the completions",
    "depends on the order of the batch",
    "returns what evaluation does not",
    "returns what is not used: rewards changed after the call",
]


def _instances(record: Record, _: Network) -> Iterator[Instance]:
    if not any(generation.reward_calls for generation in record.generations):
        raise NotSeen("no call of a reward function was seen")
    for number, generation in enumerate(record.generations):
        sampled = rollouts(generation, record.settings) if generation.calls else []
        for call in generation.reward_calls:
            said_again = (call.again, call.backwards, call.alone, call.evaluated)
            if generation.rewards is None and not sampled and not any(said_again):
                raise NotSeen("nothing was seen that a reward function's answer is held to")
            found = _wrong(record, generation, sampled, call)
            sentences = " and ".join(map("".join, found.items()))
            said = f"{call.name} {sentences}"
            yield Instance(f"generation {number + 1}", partial(_compare, found), said)


def _compare(found: Mapping[_Wrong, str], *, wrong: _Wrong | None = None) -> Gap:
    return different(wrong not in found if wrong else len(found))


def _wrong(
    record: Record,
    generation: Generation,
    sampled: list[Rollout],
    call: RewardCall,
) -> dict[_Wrong, str]:
    """Return what is wrong with a call, as predicates of its function: how each begins, and how it ends."""
    columns, got = call.columns, call.returned
    found: dict[_Wrong, str] = {}
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
    if call.again is not None and not _same(call.again, got):
        found["is not deterministic"] = ""
    elif call.alone is not None and not _same(call.alone, got):
        if _same(sorted(call.alone), sorted(got)):
            found["returns the rewards in another order than the completions"] = ""
        elif call.backwards is not None and not _same(call.backwards, got):
            found["depends on the order of the batch"] = ""
        # else it is meant: a reward relative to the others, whatever their order
    elif call.backwards is not None and not _same(call.backwards, got):
        found["depends on the order of the batch"] = ""
    if call.evaluated is not None and not _same(call.evaluated, got):
        found["returns what evaluation does not"] = ""
    if generation.rewards is not None and not _used(record, generation, call):
        found["returns what is not used: rewards changed after the call"] = ""
    return found


def _scored_rows(generation: Generation, count: int) -> list[int]:
    """Return the rows that are not left out: a trainer leaves a row out that has none of the rewards."""
    rewards = generation.rewards
    if rewards is None or len(rewards) != count:
        return [*range(count)]
    return (~rewards.isnan().all(1)).nonzero()[:, 0].tolist()


def _used(record: Record, generation: Generation, call: RewardCall) -> bool:
    """Return whether what was returned is what was used, less the KL where that is in the reward."""
    assert generation.rewards is not None
    used = generation.rewards[:, call.index].double()
    settings, batch = record.settings, generation.batch
    if not settings.kl_beta or settings.kl_place == "loss":
        scored = _scored_rows(generation, len(used))
        return _same(used[scored].tolist(), [call.returned[n] for n in scored])
    if batch is None or batch.old is None or batch.reference is None:
        return True  # cannot be told
    old, reference, mask = batch.old.double(), batch.reference.double(), batch.loss_mask

    def less_kl(shake: float = 0.0) -> Tensor:
        kl = kl_estimate(settings.kl_estimator, old * (1 + shake), reference)
        return torch.tensor(call.returned).double() - settings.kl_beta * (kl * mask).sum(1)

    wanted, unit = less_kl(), unit_of((batch.old, batch.reference))
    noise = torch.stack([(less_kl(shake * unit) - wanted).abs() for shake in SHAKES]).amax(0)
    return elementwise(used, wanted, shaken_by(unit, noise, wanted.abs().clamp(min=1))).share <= 1


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
    """Return what the tokenizer's own template of replies reads as a reply's content; None where it has none.

    A reply that the template does not fit has no content, and is what it was decoded to.
    """
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
        or math.isclose(a, b, rel_tol=LAST_PLACES, abs_tol=LAST_PLACES)
        for a, b in zip(one, other, strict=True)
    )


REWARDS = Segment("rewards", _instances, knobs_of(_compare), of="rollouts")
