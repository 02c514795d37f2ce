"""Log-probabilities of given tokens under the policy.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["token_logprobs"]

_CHUNK = 16  # sequences of like length that go through the model together


def token_logprobs(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float = 1.0,
    vocabulary: Tensor | None = None,
) -> Tensor:
    """log p(ids[b, t] | what the mask lets t see of ids[b, :t]) where `wanted`, else 0.

    ids, attention_mask, wanted: [B, T]; returns [B, T]. The logits are divided by the sampling
    temperature, as the sampler's are. The first token has no prediction. vocabulary: bool [V], the
    only tokens that can be predicted.

    Sequences are sorted by length and cut after their last wanted token, so that next to nothing is
    spent on padding, and only the wanted positions go through the output layer.
    """
    wanted = wanted.bool().clone()
    wanted[:, 0] = False
    lengths = (wanted * torch.arange(1, ids.shape[1] + 1)).amax(1)
    result = torch.zeros(ids.shape)
    for rows in torch.split(lengths.argsort(stable=True), _CHUNK):
        width = int(lengths[rows].max())
        if not width:
            continue
        tokens, targets = ids[rows, :width], wanted[rows, :width]
        hidden = model.model(
            input_ids=tokens, attention_mask=attention_mask[rows, :width], use_cache=False
        )[0]
        logits = model.lm_head(hidden[:, :-1][targets[:, 1:]]).float() / temperature
        if vocabulary is not None:
            logits = logits.masked_fill(~vocabulary, float("-inf"))
        chosen = tokens[targets]
        values = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        at, t = targets.nonzero(as_tuple=True)
        result = result.index_put((rows[at], t), values)
    return result
