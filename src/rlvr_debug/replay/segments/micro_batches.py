"""micro-batches, model inputs: which rows each backward pass is of, and what the policy reads for it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from rlvr_debug.blocks import OneOf
from rlvr_debug.replay.finding import need, seen
from rlvr_debug.replay.judge import Gap, Instance, certain, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Forward, Record
from rlvr_debug.replay.rollouts import batch_of, origins
from rlvr_debug.replay.segments.logprobs import Attention, computed_again, masked

_FIELDS = tuple(field.name for field in fields(Batch))
_CHANGED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "negated": torch.neg,
    "zero": torch.zeros_like,
    "absolute": torch.abs,
}
_OLD = "old log-probabilities"
_THEN = (*_CHANGED, "in the order of the generation", "other rows")


def of_rows(record: Record, network: Network) -> Iterator[Instance]:
    """micro-batches: each row of a generation is trained once in each pass, with what belongs to it."""
    for number, origin in enumerate(origins(record)):
        said = f"its batch is that of generation {origin + 1}"
        yield certain(f"generation {number + 1}", int(number != origin), said)
    trained: dict[int, Counter[int]] = {}
    with_old: set[int] = set()  # generations of which a micro-batch had old log-probabilities
    for number, update in enumerate(record.updates):
        where = f"update {number + 1}"
        count, expected = len(update.micro_batches), record.settings.micro_batches * record.size
        said = f"{count} micro-batches, expected {expected}"
        yield certain(where, count != expected, said)
        for micro in update.micro_batches:
            rows = seen(micro.given.rows, "rows could not be followed into the micro-batches")
            trained.setdefault(micro.generation, Counter()).update(rows.tolist())
            generation = record.generations[micro.generation]
            whole = batch_of(generation)
            has_old = _known(micro.given.old)
            lost = not has_old and micro.generation in with_old
            yield certain(where, lost * len(rows), "old log-probabilities are missing")
            if has_old:
                with_old.add(micro.generation)
            for name in _FIELDS:
                kept, given = getattr(whole, name), getattr(micro.given, name)
                if name == "rows" or not (_known(kept) and _known(given)):
                    continue
                # old ones that are computed again may round otherwise: their own segment holds them to their weights
                again = name == "old" and _OLD not in record.unseen
                if not (again and computed_again(network, generation, micro.given)):
                    compare = partial(compare_part, name, kept, given, rows)
                    said = f"{name} are not those of the rows"
                    yield Instance(where, compare, said)
    # each generation that was wholly trained: all but the last, which the record may cut
    for number in sorted(trained)[:-1]:
        every = range(len(batch_of(record.generations[number]).completion_ids))
        wanted = Counter(dict.fromkeys(every, record.settings.num_iterations))
        more, missing = (trained[number] - wanted).total(), (wanted - trained[number]).total()
        said = f"{more} rows are trained once too often, {missing} are left out"
        yield certain(f"generation {number + 1}", more + missing, said)


def _known(tensor: Tensor | None) -> bool:
    return tensor is not None and bool(tensor.numel())


def compare_part(
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
        wrong = [own for own, right in pairs if (own != right).any()]
        return different(
            sum(not (others == x).reshape(len(others), -1).all(1).any() for x in wrong)
        )
    wanted = _CHANGED.get(then, torch.clone)(wanted)
    off = (given != wanted) & ~(given.isnan() & wanted.isnan())
    return different(int(off.reshape(len(rows), -1).any(1).sum()))


def _cut(values: Tensor, width: int, name: str) -> Tensor:
    """Return the columns that a micro-batch may leave out: padding, on the left of prompts, on the right otherwise."""
    return values[:, -width:] if name.startswith("prompt") else values[:, :width]


# --- model inputs


def inputs(record: Record, _: object) -> Iterator[Instance]:
    """model inputs: for the loss the policy reads each row's prompt and completion, at their places, and nothing else."""
    for number, update in enumerate(record.updates):
        for micro in update.micro_batches:
            forward = seen(micro.forward, "no forward pass of the policy was recorded")
            compare = partial(compare_inputs, forward, micro.given)
            yield Instance(f"update {number + 1}", compare)


def compare_inputs(
    forward: Forward,
    batch: Batch,
    *,
    attention: Attention | Literal["part of the prompt"] = "",
    tokens: Literal["", "other"] = "",
    positions: Literal["", "other"] = "",
) -> Gap:
    if attention == "part of the prompt":
        return different(not _in_prompt(forward, batch))
    wrong = _off(forward, batch, attention)
    named = "tokens" if tokens else "positions" if positions else ""
    return different(wrong != named)


def _in_prompt(forward: Forward, batch: Batch) -> bool:
    """Return whether a part of prompts is hidden, and all else is right."""
    read, whole = forward.attention_mask, masked(batch)
    if read is None or read.shape != forward.input_ids.shape or read.shape != whole.shape:
        return False
    off = whole.bool() ^ read.bool()
    hidden = not bool((off & read.bool()).any() or off[:, batch.prompt_ids.shape[1] :].any())
    return hidden and _off(forward, batch, "") == "attention"


def _off(forward: Forward, batch: Batch, attention: Attention) -> str:
    """Return what is not as it should be under this attention mask: tokens, attention or positions; "" for nothing."""
    ids, read, positions = forward.input_ids, forward.attention_mask, forward.position_ids
    read = torch.ones_like(ids) if read is None else read
    need(read.dim() == 2, f"the attention mask has {read.dim()} dimensions, expected 2")
    if len(ids) != len(batch.prompt_ids):
        return "tokens"
    real, wanted = masked(batch).bool(), masked(batch, attention).bool()
    sequences = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    for row in range(len(ids)):
        sequence = sequences[row][real[row]]
        starts = _starts(ids[row], sequence)
        if not starts:
            return "tokens"
        mask = wanted[row][real[row]]
        fitting = []
        for start in starts:
            row_mask = torch.full((ids.shape[1],), attention == "all")  # else padding is not read
            row_mask[start : start + len(mask)] = mask
            fitting += [start] if torch.equal(read[row].bool(), row_mask) else []
        if not fitting:
            return "attention"
        if positions is not None:
            own = positions.expand(ids.shape)[row][fitting[0] : fitting[0] + len(sequence)]
            # a common shift is none for relative positions
            if len(own) > 1 and not bool((own[1:] - own[:-1] == 1).all()):
                return "positions"
    return ""


def _starts(ids: Tensor, sequence: Tensor) -> list[int]:
    """Return where a sequence, [t], stands in a row, [T]: for the usual paddings one place."""
    if not len(sequence):
        return [0]
    if len(sequence) > len(ids):
        return []
    windows = ids.unfold(0, len(sequence), 1)
    found: list[int] = (windows == sequence).all(1).nonzero()[:, 0].tolist()
    return found
