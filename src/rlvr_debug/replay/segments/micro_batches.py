"""micro-batches: each row of a generation is trained once in each pass, with what belongs to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay.delayed import origins
from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Record
from rlvr_debug.replay.rollouts import batch_of
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "micro-batches"
_FIELDS = tuple(field.name for field in fields(Batch))
_CHANGED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "negated": torch.neg,
    "zero": torch.zeros_like,
    "absolute": torch.abs,
}
_THEN = (*_CHANGED, "in the order of the generation", "other rows")


def instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, origin in enumerate(origins(record)):
        said = f"its batch is that of generation {origin + 1}"
        off = partial(_wrong, int(number != origin))
        yield Instance(f"generation {number + 1}", off, partial(str, said))
    trained: dict[int, Counter[int]] = {}
    for number, update in enumerate(record.updates):
        where = f"update {number + 1}"
        count, expected = len(update.micro_batches), record.settings.micro_batches * record.size
        said = f"{count} micro-batches, expected {expected}"
        yield Instance(where, partial(_wrong, count != expected), partial(str, said))
        for micro in update.micro_batches:
            rows = micro.given.rows
            if rows is None:
                raise NotSeen("rows could not be followed into the micro-batches")
            trained.setdefault(micro.generation, Counter()).update(rows.tolist())
            whole = batch_of(record.generations[micro.generation])
            for name in _FIELDS:
                kept, given = getattr(whole, name), getattr(micro.given, name)
                if name != "rows" and _known(kept) and _known(given):
                    compare = partial(_compare, name, kept, given, rows)
                    said = f"{name} are not those of the rows"
                    yield Instance(where, compare, partial(str, said))
    yield from _passes(record, trained)


def _known(tensor: Tensor | None) -> bool:
    return tensor is not None and bool(tensor.numel())


def _wrong(count: int, **_: str) -> Gap:
    return different(count)


def _compare(
    name: str,
    kept: Tensor,
    given: Tensor,
    rows: Tensor,
    *,
    of: Annotated[str, OneOf(lambda: _FIELDS)] = "",
    then: Annotated[str, OneOf(lambda: _THEN)] = "",
) -> Gap | None:
    if of and of != name:
        return None
    wanted = kept[rows]
    if wanted.dim() > 1:
        width = min(wanted.shape[1], given.shape[1])
        wanted, given = _cut(wanted, width, name), _cut(given, width, name)
    elif then == "in the order of the generation":
        wanted = kept[: len(rows)]
    if then == "other rows":
        others = kept if kept.dim() == 1 else _cut(kept, given.shape[1], name)
        if given.dim() > 1:
            given = given[:, : others.shape[1]]
        pairs = zip(given, wanted, strict=True)
        return different(sum(bool((g != w).any()) and not _any_row(g, others) for g, w in pairs))
    wanted = _CHANGED.get(then, torch.clone)(wanted)
    off = (given != wanted) & ~(given.isnan() & wanted.isnan())
    return different(int(off.reshape(len(rows), -1).any(1).sum()))


def _any_row(own: Tensor, others: Tensor) -> bool:
    return bool((others == own).reshape(len(others), -1).all(1).any())


def _cut(values: Tensor, width: int, name: str) -> Tensor:
    """Return the columns that a micro-batch may leave out: padding, on the left of prompts, on the right otherwise."""
    return values[:, -width:] if name.startswith("prompt") else values[:, :width]


def _passes(record: Record, trained: dict[int, Counter[int]]) -> Iterator[Instance]:
    """Yield one instance a generation that was wholly trained: all but the last, which the record may cut."""
    for number in sorted(trained)[:-1]:
        rows = range(len(batch_of(record.generations[number]).completion_ids))
        wanted = Counter(dict.fromkeys(rows, record.settings.num_iterations))
        more = (trained[number] - wanted).total()
        missing = (wanted - trained[number]).total()
        said = f"{more} rows are trained once too often, {missing} are left out"
        yield Instance(
            f"generation {number + 1}", partial(_wrong, more + missing), partial(str, said)
        )


KNOBS = knobs_of(_compare)
