"""model inputs: for the loss the policy reads each row's prompt and completion, at their places, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from rlvr_debug.replay.finding import NotSeen
from rlvr_debug.replay.judge import Gap, Instance, different
from rlvr_debug.replay.network import Network
from rlvr_debug.replay.record import Batch, Forward, Record
from rlvr_debug.replay.segments.fixed_logprobs import masked

SEGMENT = "model inputs"


def instances(record: Record, _: Network) -> Iterator[Instance]:
    for number, update in enumerate(record.updates):
        for micro in update.micro_batches:
            if micro.forward is None:
                raise NotSeen("no forward pass of the policy was seen")
            compare = partial(_compare, micro.forward, micro.given)
            yield Instance(f"update {number + 1}", compare)


def _compare(
    forward: Forward, batch: Batch, attention: str = "", tokens: str = "", positions: str = ""
) -> Gap:
    wrong = _wrong(forward, batch, attention)
    named = "tokens" if tokens else "positions" if positions else ""
    return different(wrong != named)


def _wrong(forward: Forward, batch: Batch, attention: str) -> str:
    """Return what is not as it should be under this attention mask: tokens, attention or positions; "" for nothing."""
    mask = masked(batch, attention).bool()
    read = forward.attention_mask
    read = torch.ones_like(forward.input_ids) if read is None else read
    if read.dim() != 2:
        raise NotSeen("the attention mask has more than two axes")
    real = masked(batch).bool()
    rows = torch.cat([batch.prompt_ids, batch.completion_ids], 1)
    if _sequences(forward.input_ids, _spread(read, forward, real)) != _sequences(rows, real):
        return "tokens"
    if forward.input_ids.shape != rows.shape:
        return (
            "attention" if attention else ""
        )  # unpadded otherwise: the tokens are all there is to compare
    if not torch.equal(read.bool(), mask):
        return "attention"
    return "" if _usual_positions(forward.position_ids, mask) else "positions"


def _spread(read: Tensor, forward: Forward, real: Tensor) -> Tensor:
    """Return which of the given tokens are compared: where the batch's own padding fits, all that are not padding."""
    return real if forward.input_ids.shape == real.shape else read


def _sequences(ids: Tensor, real: Tensor) -> list[list[int]]:
    return [row[mask.bool()].tolist() for row, mask in zip(ids, real, strict=True)]


def _usual_positions(positions: Tensor | None, mask: Tensor) -> bool:
    """Return whether the places of real tokens follow each other; a common shift is none for relative positions."""
    if positions is None:
        return True
    if positions.shape != mask.shape:
        positions = positions.expand(mask.shape)
    steps = positions[:, 1:] - positions[:, :-1]
    both = mask[:, 1:] & mask[:, :-1]
    return bool((steps[both] == 1).all())
