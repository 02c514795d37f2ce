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

__all__ = ["Step", "generation_of"]


@dataclass(frozen=True)
class Step:
    """What was sampled and what the actor is updated by, row by row.

    trained, sampled: by verl's names, [B, P + C] the attention mask, [B, P] the prompts, else [B, C]. uids: the group of
    each row. rows: its columns of the data set. several: rows with several replies, in which the agent loop's mask says
    who wrote a token. again, backwards: rewards of the same rows, called again.
    """

    trained: Mapping[str, Tensor]
    sampled: Mapping[str, Tensor]
    uids: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    several: Sequence[bool]
    reward: str = "reward"
    again: Sequence[float] | None = None
    backwards: Sequence[float] | None = None
    notes: list[str] = field(default_factory=list)


def generation_of(step: Step, size: int) -> Generation:
    """Return the generation, with the rows of a group next to each other. size: of a group.

    Groups of another size are left out, and the step's notes say so, unless there are no others.
    """
    order = _order(step, size)
    trained, sampled = (
        {name: tensor[order] for name, tensor in each.items()}
        for each in (step.trained, step.sampled)
    )
    rewards = trained["token_level_rewards"].sum(-1, keepdim=True)
    scores = sampled.get("rm_scores", trained["token_level_scores"]).sum(-1)
    again, backwards = (
        None if each is None else [float(each[row]) for row in order]
        for each in (step.again, step.backwards)
    )
    return Generation(
        rows=[dict(step.rows[row]) for row in order],
        calls=_calls(sampled, [step.several[row] for row in order]) if sampled else [],
        reward_calls=[RewardCall(step.reward, 0, {}, scores.tolist(), again, backwards)],
        rewards=rewards,
        batch=_batch(trained),
    )


def _order(step: Step, size: int) -> list[int]:
    """Return the rows, group by group, in the order in which groups first appear."""
    counts = Counter(step.uids)
    whole = {uid for uid, count in counts.items() if count == size}
    first = {uid: place for place, uid in reversed([*enumerate(step.uids)])}
    order = sorted(range(len(step.uids)), key=lambda row: first[step.uids[row]])
    if not whole:  # each row a group of its own: what a group is then is to be judged
        return order[: len(order) // size * size]
    kept = [row for row in order if step.uids[row] in whole]
    if left := len(order) - len(kept):
        step.notes.append(f"{left} rows of groups of another size than {size} are left out")
    return kept


def _batch(trained: Mapping[str, Tensor]) -> Batch:
    prompts, responses = trained["prompts"], trained["responses"]
    real = trained["attention_mask"].long()
    read, wrote = real[:, : prompts.shape[1]], real[:, prompts.shape[1] :]
    counted = trained["response_mask"].long()
    # columns of nothing but padding cost a forward pass, and say nothing
    left, right = read.any(0), wrote.any(0) | counted.any(0)
    others = {
        ours: trained[theirs][:, right].float()
        for ours, theirs in (
            ("advantages", "advantages"),
            ("old", "old_log_probs"),
            ("reference", "ref_log_prob"),
            ("sampler", "rollout_log_probs"),
            ("importance_weights", "rollout_is_weights"),
        )
        if theirs in trained
    }
    return Batch(
        prompt_ids=prompts[:, left].long(),
        prompt_mask=read[:, left],
        completion_ids=responses[:, right].long(),
        completion_mask=wrote[:, right],
        loss_mask=counted[:, right],
        rows=torch.arange(len(prompts)),
        **others,
    )


@dataclass(frozen=True)
class _Turn:
    row: int
    prompt: list[int]
    output: list[int]
    logprobs: list[float]


def _calls(sampled: Mapping[str, Tensor], several: Sequence[bool]) -> list[Call]:
    """Return the sampler's calls: the first of all rows, and one for each further reply of a row."""
    turns = [_turns(sampled, row, more) for row, more in enumerate(several)]
    most = max(map(len, turns), default=0)
    return [_call([each[n] for each in turns if n < len(each)]) for n in range(most)]


def _call(turns: Sequence[_Turn]) -> Call:
    return Call(
        prompts=[each.prompt for each in turns],
        outputs=[each.output for each in turns],
        logprobs=[each.logprobs for each in turns] if any(each.logprobs for each in turns) else [],
        rows=[each.row for each in turns],
    )


def _turns(sampled: Mapping[str, Tensor], row: int, several: bool) -> list[_Turn]:
    """Return a row's replies. With one reply all of the response is it, whatever a mask says."""
    prompts, responses = sampled["prompts"][row], sampled["responses"][row]
    read, real = sampled["attention_mask"][row].bool().split([len(prompts), len(responses)])
    prompt, ids = prompts[read].tolist(), responses[real].tolist()
    known = sampled.get("rollout_log_probs")
    logprobs = [] if known is None else known[row][real].tolist()
    wrote = sampled["response_mask"][row][real].bool().tolist() if several else [True] * len(ids)
    runs = [[*run] for own, run in groupby(range(len(ids)), wrote.__getitem__) if own] or [[]]
    return [
        _Turn(
            row,
            prompt + ids[: run[0] if run else 0],
            [ids[n] for n in run],
            [logprobs[n] for n in run if logprobs],
        )
        for run in runs
    ]
