"""Sequences as our trainer has them -> prompts and completions as a record has them, and values in their places.

Axes: B rollouts, b of a micro-batch, T and t tokens, P tokens of a prompt, C of a completion.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.grpo.sequences import Batch


class Split:
    """Cuts sequences, [B, T], padded on the right, into prompts and completions: these begin where the model first wrote."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.starts = batch.sampled.int().argmax(1)
        self.lengths = batch.real.sum(1) - self.starts
        self.width = int(self.lengths.max())

    def places(self) -> Tensor:
        """Return where each token of a completion stands in its sequence, [B, C], 0 for padding."""
        steps = torch.arange(self.width)
        return (self.starts[:, None] + steps) * (steps < self.lengths[:, None])

    def of(self, values: Tensor) -> Tensor:
        """Return the completions' part of values, [B, T] -> [B, C]; padding is 0."""
        places = self.places()
        return values.gather(1, places) * (places > 0)

    def sequences(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return prompts, padded on the left, and their mask, [B, P]; completions and their mask, [B, C]."""
        rows = zip(self._batch.ids, self.starts.tolist(), strict=True)
        prompts = [ids[:start].flip(0) for ids, start in rows]
        ids = pad_sequence(prompts, batch_first=True).flip(1)
        mask = pad_sequence([torch.ones_like(each) for each in prompts], batch_first=True).flip(1)
        real = (self.places() > 0).long()
        return ids, mask, self.of(self._batch.ids), real


def gathered(values: Tensor, places: Tensor) -> Tensor:
    """Return values, [b, t], at these places, [b, C]; 0 where there are none."""
    inside = (places > 0) & (places < values.shape[1])
    return values.gather(1, places.clamp(max=values.shape[1] - 1)) * inside


def joined(parts: Sequence[Tensor | None], width: int) -> Tensor:
    """Return the rows of all parts, [b, c], in the width of completions; padding is 1."""
    padded = [
        torch.nn.functional.pad(part, (0, width - part.shape[1]), value=1.0)
        for part in parts
        if part is not None
    ]
    return torch.cat(padded)
