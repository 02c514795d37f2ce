"""One step as verl's driver holds it -> a generation of a record. Axes: B rows, P tokens of prompts, C of responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rlvr_debug.replay.record import Batch, Call, Generation, RewardCall

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
    """What was sampled, empty where that was not seen, and what the actor is updated by.

    trained, sampled: by verl's names, the attention mask [B, P + C], prompts [B, P], all else [B, C]. uids: the group of
    each row. rows: its columns of the data set. several: which rows have several replies: there the agent loop's mask
    says who wrote a token. again: the rewards of the same rows, called again.
    """

    trained: Mapping[str, Tensor]
    sampled: Mapping[str, Tensor]
    uids: Sequence[str]
    rows: Sequence[dict[str, Any]]
    several: Sequence[bool]
    again: Sequence[float] | None = None
    notes: list[str] = field(default_factory=list)


def generation_of(step: Step, size: int) -> Generation:
    """Return the generation, with the rows of a group next to each other. size: of a group.

    Groups of another size are left out, and the step's notes say so, unless there are no others.
    """
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
    """Return the rows, group by group, in the order in which groups first appear."""
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
    """Return where prompts of this width are, and what comes after them."""
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
    known = (
        sampled["rollout_log_probs"][row][real].tolist() if "rollout_log_probs" in sampled else []
    )
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
