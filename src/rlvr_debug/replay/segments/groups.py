"""groups: each group's rollouts are of one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Literal

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Record
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "groups"
_Layout = Literal["blocks", "interleaved", "cut elsewhere", "another order", "strays"]


def instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, generation in enumerate(record.generations):
        if any("prompt" not in row for row in generation.rows):
            raise NotSeen("the rows have no column 'prompt'")
        prompts = [str(row["prompt"]) for row in generation.rows]
        compare = partial(_compare, prompts, record.settings.group_size)
        yield Instance(f"generation {number + 1}", compare)
    yield from _drawn(record)


def _drawn(record: Record) -> Iterator[Instance]:
    """Yield whether all generations are of the same rows, though the data have more that were not drawn yet."""
    settings = record.settings
    drawn = [frozenset(str(row["prompt"]) for row in each.rows) for each in record.generations]
    if len(drawn) < 2 or settings.first_step or not all(drawn):
        return
    if settings.data_rows >= len(drawn) * max(map(len, drawn)):
        said = f"all generations are of the same rows, of {settings.data_rows} that there are"
        yield Instance("all generations", partial(_same, len(set(drawn)) == 1), partial(str, said))


def _same(same: bool, *, layout: _Layout = "blocks") -> Gap | None:
    return different(same) if layout == "blocks" else None


def _compare(prompts: list[str], size: int, *, layout: _Layout = "blocks") -> Gap:
    count = len(prompts) // size
    if layout == "cut elsewhere":
        turned = ([*prompts[n:], *prompts[:n]] for n in range(1, size))
        return different(all(_compare(each, size).share > 1 for each in turned))
    if layout == "another order":
        return different(any(many % size for many in Counter(prompts).values()))
    if layout == "strays":
        blocks = [prompts[n : n + size] for n in range(0, len(prompts), size)]
        return different(any(Counter(each).most_common(1)[0][1] < size - 1 for each in blocks))
    groups = [
        prompts[n * size : (n + 1) * size] if layout == "blocks" else prompts[n::count]
        for n in range(count)
    ]
    mixed = sum(len(set(group)) > 1 for group in groups)
    return different(mixed + (count * size != len(prompts)))


KNOBS = knobs_of(_compare)
