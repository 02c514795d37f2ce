"""What a forward pass of the policy reads, as one over the batch that is trained on, padded as that is."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlvr_debug.replay.finding import seen
from rlvr_debug.replay.record import Batch, Forward


def joined(one: Forward | None, other: Forward, most: int) -> Forward | None:
    """Return two forward passes over parts of a batch of `most` rows as one; None where they are not that.

    A part may have been cut to its own longest row: it is padded on the left again.
    """
    if one is None or len(one.input_ids) + len(other.input_ids) > most:
        return None
    width = max(one.input_ids.shape[1], other.input_ids.shape[1])
    parts = [_padded(each, width - each.input_ids.shape[1]) for each in (one, other)]
    names = ("input_ids", "attention_mask", "position_ids")
    pairs = [[getattr(part, name) for part in parts] for name in names]
    shapes = [[None if each is None else each.shape[1:] for each in pair] for pair in pairs]
    if any(a != b for a, b in shapes):
        return None
    return Forward(*(None if a is None else torch.cat([a, b]) for a, b in pairs))  # type: ignore[arg-type]


def unpacked(packed: Forward, batch: Batch) -> Forward | None:
    """Return a pass over rows that stand in one sequence, [1, T], as one over these rows, padded as the batch is, [b, P + C].

    Positions that begin again set them apart where no attention mask is given. None where it is not such a pass, or a
    part of it is no row of the batch.
    """
    ids, positions = packed.input_ids, packed.position_ids
    if ids.shape[0] != 1 or positions is None or packed.attention_mask is not None:
        return None
    if positions.shape != ids.shape or len(batch.prompt_ids) < 2:
        return None
    begins = (positions[0] == 0).nonzero()[:, 0].tolist()
    lengths = [end - begin for begin, end in pairwise([*begins, ids.shape[1]])]
    counted = torch.cat([torch.arange(length) for length in lengths]) if begins else positions
    if not begins or begins[0] or not torch.equal(positions[0], counted):
        return None
    rows = _matched(torch.split(ids[0], lengths), batch)
    return None if rows is None else _laid_out(batch, sorted(rows))


def read_on(batch: Batch, before: int, forward: Forward) -> Forward | None:
    """Return the whole pass over a batch that reads on from a cache of its first columns; None where it reads something else.

    Whether the cache is of these columns is seen by the log-probabilities. The last column need not be read.
    """
    whole = _laid_out(batch, range(len(batch.prompt_ids)))
    ids, read, end = whole.input_ids, forward.attention_mask, before + forward.input_ids.shape[1]
    same = before > 0 and ids[:, before:end].shape == forward.input_ids.shape
    if not same or end < ids.shape[1] - 1:
        return None
    if not torch.equal(ids[:, before:end], forward.input_ids) or forward.position_ids is not None:
        return None
    mask = seen(whole.attention_mask)
    if read is None or read.shape != mask[:, :end].shape:
        return None
    return Forward(ids, torch.cat([read, mask[:, end:]], 1))


def in_order(forward: Forward, batch: Batch) -> Forward | None:
    """Return a pass over all rows of a batch, which stand in another order or were cut on both sides, as the batch is padded.

    None where it is not such a pass, or a row is not read as one piece.
    """
    ids, read = forward.input_ids, forward.attention_mask
    if len(ids) != len(batch.prompt_ids) or forward.position_ids is not None:
        return None
    if read is None or read.shape != ids.shape:
        return None
    width = batch.completion_ids.shape[1]
    if torch.equal(ids[:, -width:], batch.completion_ids):
        return None
    pieces = (read.bool()[:, 1:] & ~read.bool()[:, :-1]).sum(1) + read.bool()[:, 0]
    parts = [row[real.bool()] for row, real in zip(ids, read, strict=True)]
    if bool((pieces > 1).any()) or (rows := _matched(parts, batch)) is None:
        return None
    return _laid_out(batch, sorted(rows))


def _matched(parts: Sequence[Tensor], batch: Batch) -> list[int] | None:
    """Return which row of the batch each part has the tokens of, without padding; None where one has those of none."""
    whole = _laid_out(batch, range(len(batch.prompt_ids)))
    pairs = zip(whole.input_ids, seen(whole.attention_mask).bool(), strict=True)
    left = {row: ids[real].tolist() for row, (ids, real) in enumerate(pairs)}
    found = []
    for part in parts:
        row = next((row for row, own in left.items() if own == part.tolist()), None)
        if row is None:
            return None
        del left[row]
        found.append(row)
    return found


def _laid_out(batch: Batch, rows: Sequence[int]) -> Forward:
    """Return these rows of the batch as a forward pass reads them."""
    ids = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    read = torch.cat([batch.prompt_mask, batch.completion_mask], 1)
    return Forward(ids[[*rows]], read[[*rows]])


def _padded(part: Forward, count: int) -> Forward:
    """Return a forward pass, [B, T], with columns before it that are not read."""
    if not count:
        return part
    read = torch.ones_like(part.input_ids) if part.attention_mask is None else part.attention_mask
    tensors = (part.input_ids, read, part.position_ids)
    return Forward(*(None if t is None else pad(t, (count, 0)) for t in tensors))  # type: ignore[arg-type]
