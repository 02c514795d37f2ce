"""Did a server get the update? Its log-probabilities of some sequences, beside the trainer's.

In process the sampler holds a copy of the trainer's tensors, and a sync that fails is a fault to be studied
(probes/weight_sync.py). A server holds what it read from files, and a stale one would be studied unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlvr_debug.errors import InputError
from rlvr_debug.grpo.sequences import Batch

__all__ = ["SyncCheck", "some_rows"]

_SEQUENCES = 4


@dataclass(frozen=True)
class SyncCheck:
    """ask: the server's log-probabilities, at temperature 1, of all tokens but the first of each of these
    sequences; bound: nats that it may be off on average."""

    ask: Callable[[list[list[int]]], list[list[float]]]
    bound: float

    def gap(self, batch: Batch, before: Tensor, after: Tensor, step: int) -> float:
        """Mean absolute difference of the server's from the trainer's, of sampled tokens, in nats.

        before, after: the trainer's at temperature 1, on both sides of the update, [B, T]. Raises InputError
        where the gap is above the bound, or where the server is as near as that to what the trainer was: an
        update may move less than the bound, and the arithmetic of a policy that is sure of much is coarser.
        """
        ids = [row[real].tolist() for row, real in zip(batch.ids, batch.real, strict=True)]
        answered = torch.zeros(batch.ids.shape)
        for row, values in zip(answered, self.ask(ids), strict=True):
            row[1 : len(values) + 1] = torch.tensor(values)
        gap, behind = (
            float((answered - logprobs)[batch.sampled].abs().mean()) for logprobs in (after, before)
        )
        found = f"step {step}: after the update the server is {gap:.2g} nats from the trainer on average"
        if 2 * behind < gap:
            raise InputError(
                f"{found}, and {behind:.2g} from what the trainer was before, expected to follow: "
                "it has not got the trained weights"
            )
        if not gap <= self.bound:
            raise InputError(
                f"{found}, expected at most {self.bound:g} (vllm.sync_bound): it has not got all of "
                "the trained weights, or computes otherwise"
            )
        return gap


def some_rows(count: int, processes: int) -> Tensor:
    """A few of `count` sequences, spread over them, as many for each process: [b]."""
    wanted = max(_SEQUENCES // processes, 1) * processes
    return torch.linspace(0, count - 1, min(wanted, count)).long()
