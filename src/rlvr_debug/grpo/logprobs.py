"""Log-probabilities of given tokens under the policy.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["token_logprobs"]


def token_logprobs(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float = 1.0,
    *,
    chunk: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return log p(ids[b, t] | what the mask lets t see of ids[b, :t]) where `wanted`, else 0: [B, T].

    ids, attention_mask, wanted: [B, T]. The logits are divided by the sampling temperature, as the
    sampler's are. The first token has no prediction. dtype: what the logits are normalised in.

    Sequences are sorted by length, cut after their last wanted token and go through the model `chunk`
    at a time, so that next to nothing is spent on padding; only the wanted positions go through the
    output layer. TRL's GRPOTrainer._get_per_token_logps_and_entropies.
    """
    wanted = wanted.bool().clone()
    wanted[:, 0] = False
    lengths = (wanted * torch.arange(1, ids.shape[1] + 1, device=ids.device)).amax(1)
    result = torch.zeros(
        ids.shape, dtype=torch.promote_types(dtype, torch.float32), device=ids.device
    )
    for rows in torch.split(lengths.argsort(stable=True), chunk):
        # at least one token: processes that share a model run it equally often
        width = max(int(lengths[rows].max()), 1)
        tokens, targets = ids[rows, :width], wanted[rows, :width]
        hidden = model.model(
            input_ids=tokens, attention_mask=attention_mask[rows, :width], use_cache=False
        )[0]
        logits = model.lm_head(hidden[:, :-1][targets[:, 1:]]).to(dtype) / temperature
        chosen = tokens[targets]
        values = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        at, t = targets.nonzero(as_tuple=True)
        result = result.index_put((rows[at], t), values.to(result.dtype))
    return result
