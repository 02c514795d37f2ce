"""model inputs: for the loss the policy reads each row's prompt and completion, at their places, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Forward, Record
from rlvr_debug.replay.segments.fixed_logprobs import Attention, masked
from rlvr_debug.replay.variants import knobs_of

SEGMENT = "model inputs"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, update in enumerate(record.updates):
        for micro in update.micro_batches:
            if micro.forward is None:
                raise NotSeen("no forward pass of the policy was seen")
            compare = partial(_compare, micro.forward, micro.given)
            yield Instance(f"update {number + 1}", compare)


def _compare(
    forward: Forward,
    batch: Batch,
    *,
    attention: Attention | Literal["part of the prompt"] = "",
    tokens: Literal["", "other"] = "",
    positions: Literal["", "other"] = "",
) -> Gap:
    if attention == "part of the prompt":
        return different(not _in_prompt(forward, batch))
    wrong = _wrong(forward, batch, attention)
    named = "tokens" if tokens else "positions" if positions else ""
    return different(wrong != named)


def _in_prompt(forward: Forward, batch: Batch) -> bool:
    """Return whether a part of prompts is hidden, and all else is right."""
    read, width = forward.attention_mask, batch.prompt_ids.shape[1]
    if read is None or read.shape != torch.Size(
        [len(batch.prompt_ids), forward.input_ids.shape[1]]
    ):
        return False
    whole = masked(batch)
    if read.shape != whole.shape or _wrong(forward, batch, "") != "attention":
        return False
    hidden = whole.bool() & ~read.bool()
    added = read.bool() & ~whole.bool()
    return not bool(added.any()) and not bool(hidden[:, width:].any())


def _wrong(forward: Forward, batch: Batch, attention: Attention) -> str:
    """Return what is not as it should be under this attention mask: tokens, attention or positions; "" for nothing.

    Each row's sequence is looked for in what the policy was given, however that is padded.
    """
    ids, read, positions = forward.input_ids, forward.attention_mask, forward.position_ids
    read = torch.ones_like(ids) if read is None else read
    if read.dim() != 2:
        raise NotSeen("the attention mask has more than two axes")
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
        fitting = [
            start
            for start in starts
            if torch.equal(read[row].bool(), _spread(mask, start, ids.shape[1], attention == "all"))
        ]
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


def _spread(mask: Tensor, start: int, width: int, outside: bool) -> Tensor:
    """Return a sequence's mask, [t], as a row, [T]. outside: whether padding is read."""
    row = torch.full((width,), outside)
    row[start : start + len(mask)] = mask
    return row


KNOBS = knobs_of(_compare)
