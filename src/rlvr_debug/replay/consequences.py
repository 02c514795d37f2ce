"""What is as it is set, and may still keep a run from learning: no deviation, but worth a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.record import Generation, Record
from rlvr_debug.replay.rollouts import rollouts

__all__ = ["remarks"]

_MANY = 0.2  # share of replies or prompts that a limit cuts: the criterion of context-truncation
_DEAD = 0.5  # share of groups without contrast: a useful group costs twice


def remarks(record: Record) -> tuple[str, ...]:
    """Return sentences on limits, contrast within groups and repeated rows, where they are worth one."""
    return tuple(
        sentence
        for look in (_cut_replies, _cut_prompts, _dead_groups, _same_rows)
        for sentence in look(record)
    )


def _cut_replies(record: Record) -> Iterator[str]:
    ends = {*record.settings.eos_ids, record.settings.pad_id}
    outputs = [o for g in record.generations for c in g.calls for o in c.outputs if o]
    cut = sum(output[-1] not in ends for output in outputs)
    if outputs and record.settings.eos_ids and cut >= _MANY * len(outputs):
        yield f"{cut / len(outputs):.0%} of the replies do not end by themselves: a limit cuts them"


def _cut_prompts(record: Record) -> Iterator[str]:
    most = record.settings.max_prompt_length
    prompts = [p for g in record.generations if g.calls for p in g.calls[0].prompts]
    full = sum(len(prompt) >= most for prompt in prompts)
    if most and prompts and full >= _MANY * len(prompts):
        yield f"{full / len(prompts):.0%} of the prompts fill their limit of {most} tokens"


def _dead_groups(record: Record) -> Iterator[str]:
    size, dead, count, alike = record.settings.group_size, 0, 0, 0
    for generation in record.generations:
        if generation.rewards is None or len(generation.rewards) % size:
            continue
        groups = generation.rewards.nan_to_num(nan=0.0).view(-1, size, generation.rewards.shape[1])
        flat = (groups == groups[:, :1]).all(2).all(1)
        dead, count = dead + int(flat.sum()), count + len(flat)
        alike += _alike(record, generation, size)
    if count and dead >= _DEAD * count:
        yield f"in {dead} of {count} groups all rewards are equal, and nothing is learned from them"
    if count and alike >= _DEAD * count:
        yield f"in {alike} of {count} groups all rollouts are the same, token by token"


def _alike(record: Record, generation: Generation, size: int) -> int:
    try:
        found = [tuple(each.ids) for each in rollouts(generation, record.settings)]
    except NotSeen:
        return 0
    return sum(len(set(found[n : n + size])) == 1 for n in range(0, len(found), size))


def _same_rows(record: Record) -> Iterator[str]:
    drawn = [
        frozenset(Counter(str(row.get("prompt")) for row in generation.rows))
        for generation in record.generations
    ]
    if len(drawn) > 1 and len(set(drawn)) == 1:
        yield "every generation is of the same rows"
