"""micro-batches: each row of a generation is trained once in each pass, with what belongs to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, MicroBatch, Record
from rlvr_debug.replay.rollouts import batch_of

SEGMENT = "micro-batches"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    trained: dict[int, list[int]] = {}
    for number, update in enumerate(record.updates):
        where = f"update {number + 1}"
        count = len(update.micro_batches)
        expected = record.settings.micro_batches
        yield Instance(
            where,
            lambda count=count, expected=expected, **_: different(count != expected),
            lambda count=count: f"{count} micro-batches, expected {expected}",  # type: ignore[misc]
        )
        for micro in update.micro_batches:
            rows = micro.given.rows
            if rows is None:
                raise NotSeen("rows could not be followed into the micro-batches")
            trained.setdefault(micro.generation, []).extend(rows.tolist())
            whole = batch_of(record.generations[micro.generation])
            yield from _of_micro_batch(micro, whole, rows, where)
    yield from _passes(record, trained)


def _of_micro_batch(
    micro: MicroBatch, whole: Batch, rows: Tensor, where: str
) -> Iterator[Instance]:
    for field in fields(Batch):
        kept, given = getattr(whole, field.name), getattr(micro.given, field.name)
        if field.name == "rows" or kept is None or given is None:
            continue

        def compare(
            kept: Tensor = kept, given: Tensor = given, name: str = field.name, **change: str
        ) -> Gap | None:
            if change.get("of", name) != name:
                return None
            wanted = kept[rows]
            width = min(wanted.shape[-1], given.shape[-1])
            if wanted.dim() > 1:
                wanted, cut = _cut(wanted, width, name), _cut(given, width, name)
            else:
                cut = given
            wanted = {
                "": lambda x: x,
                "negated": torch.neg,
                "zero": torch.zeros_like,
                "in the order of the generation": lambda x: kept[: len(x)] if x.dim() == 1 else x,
                "absolute": torch.abs,
            }[change.get("then", "")](wanted)
            off = (cut != wanted) & ~(cut.isnan() & wanted.isnan())
            return different(int(off.reshape(len(rows), -1).any(1).sum()))

        yield Instance(where, compare, lambda name=field.name: f"{name} are not those of the rows")  # type: ignore[misc]


def _cut(values: Tensor, width: int, name: str) -> Tensor:
    """Return the columns that a micro-batch may leave out: padding, on the left of prompts, on the right otherwise."""
    return values[:, -width:] if name.startswith("prompt") else values[:, :width]


def _passes(record: Record, trained: dict[int, list[int]]) -> Iterator[Instance]:
    """Yield one instance a generation that was wholly trained: all but the last, which the record may cut."""
    passes = record.settings.num_iterations
    for number in sorted(trained)[:-1]:
        count = len(record.generations[number].rows)
        wanted = Counter(dict.fromkeys(range(count), passes))
        wrong = sum((Counter(trained[number]) - wanted).values())
        missing = sum((wanted - Counter(trained[number])).values())
        yield Instance(
            f"generation {number + 1}",
            lambda off=wrong + missing, **_: different(off),
            lambda a=wrong, b=missing: f"{a} rows are trained once too often, {b} are left out",  # type: ignore[misc]
        )
