"""Per-token losses -> one loss, in parts that sum to the loss of the whole batch.

Axes: B sequences of a micro-batch, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

AGGREGATIONS = ("grpo", "bnpo", "dr_grpo", "dapo")


@dataclass(frozen=True)
class Totals:
    """Counts over the whole batch, all its micro-batches together, for the loss' denominators.

    `tokens` counts those in the loss; `max_tokens` is the most that a completion could have had.
    """

    sequences: int
    tokens: int
    micro_batches: int
    max_tokens: int


def aggregate(values: Tensor, mask: Tensor, totals: Totals, aggregation: str) -> Tensor:
    """Return this micro-batch's part of the batch's loss, a scalar. values: [B, T] or [B, 1]; mask: [B, T].

    grpo: mean over each sequence's tokens, then over sequences (arXiv 2402.03300, equation 3).
    dapo: mean over the batch's tokens (arXiv 2503.14476, equation 8).
    dr_grpo: sum over the most tokens that there could be (arXiv 2503.20783).
    bnpo: mean over the micro-batch's tokens, then over micro-batches (TRL): the only one that depends
    on how the batch is cut.
    """
    if aggregation == "grpo":
        means = (values * mask).sum(1) / mask.sum(1).clamp(min=1)
        return means.sum() / totals.sequences
    total = (values * mask).sum()
    if aggregation == "bnpo":
        return total / mask.sum().clamp(min=1) / totals.micro_batches
    if aggregation == "dapo":
        return total / max(totals.tokens, 1)
    return total / (totals.sequences * totals.max_tokens)
