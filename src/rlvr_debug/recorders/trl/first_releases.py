"""TRL before 0.15, whose loss generates, scores and computes all by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlvr_debug.replay.record import Batch, Call

__all__ = ["at_once", "sampled_batch"]


def at_once(trainer: Any) -> bool:
    """Return whether the trainer has no method that makes a batch, nor one for log-probabilities."""
    names = ("_generate_and_score_completions", "_get_per_token_logps")
    newer = (*names, "_get_per_token_logps_and_entropies")
    return not any(hasattr(trainer, name) for name in newer)


def sampled_batch(calls: Sequence[Call], pad: int = 0) -> Batch:
    """Return the tokens of the sampler's calls as a batch that is trained on whole, [B, P] and [B, C].

    Which of them the loss counts, and the advantages, are not known.
    """
    prompts = [torch.tensor(row) for call in calls for row in call.prompts]
    outputs = [torch.tensor(row) for call in calls for row in call.outputs]
    real = [torch.ones_like(row) for row in outputs]
    return Batch(
        prompt_ids=_padded([row.flip(0) for row in prompts], pad).flip(1),
        prompt_mask=_padded([torch.ones_like(row) for row in prompts]).flip(1),
        completion_ids=_padded(outputs, pad),
        completion_mask=_padded(real),
        loss_mask=_padded(real).bool(),
        advantages=torch.zeros(0),
    )


def _padded(rows: Sequence[Tensor], padding: int = 0) -> Tensor:
    if not rows:
        return torch.zeros(0, 0, dtype=torch.long)
    return pad_sequence([*rows], batch_first=True, padding_value=padding)
