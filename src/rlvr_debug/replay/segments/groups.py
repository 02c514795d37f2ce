"""groups: each group's rollouts are of one row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record

SEGMENT = "groups"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, generation in enumerate(record.generations):
        if any("prompt" not in row for row in generation.rows):
            raise NotSeen("the rows have no column 'prompt'")
        prompts = [str(row["prompt"]) for row in generation.rows]
        compare = partial(_compare, prompts, record.settings.group_size)
        yield Instance(f"generation {number + 1}", compare)


def _compare(prompts: list[str], size: int, layout: str = "blocks") -> Gap:
    count = len(prompts) // size
    groups = [
        prompts[n * size : (n + 1) * size] if layout == "blocks" else prompts[n::count]
        for n in range(count)
    ]
    mixed = sum(len(set(group)) > 1 for group in groups)
    return different(mixed + (count * size != len(prompts)))
