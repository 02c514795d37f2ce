"""Log-probabilities of given tokens under the policy.

Axes: B sequences, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rlvr_debug.grpo.prefixes import passes, prefix_trees
from rlvr_debug.models.architectures import why_unread


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

    Sequences are cut after their last wanted token, and what they share from the first token on goes
    through the model once, on a processor, where its attention takes the mask of a tree. They go through it in as many
    passes as `chunk` of them at a time would take, short ones first; only what predicts a wanted token goes
    through the output layer. TRL's GRPOTrainer._get_per_token_logps_and_entropies. A model that is none of FAMILIES is
    called as it is.
    """
    if why_unread(model.config.to_dict()):
        return _of_any_model(model, ids, attention_mask, wanted.bool(), temperature, chunk, dtype)
    device, wanted = ids.device, wanted.bool().cpu().clone()
    wanted[:, 0] = False
    lengths = (wanted * torch.arange(1, ids.shape[1] + 1)).amax(1).clamp(min=1)
    # a GPU is slower under the mask of a tree than without one: half of a step was attention's way back
    shared = model.config._attn_implementation == "sdpa" and device.type == "cpu"
    trees = prefix_trees(ids.cpu(), attention_mask.cpu(), lengths, shared=shared)
    result = torch.zeros(ids.shape, dtype=torch.promote_types(dtype, torch.float32), device=device)
    for each in passes(trees, -(-len(ids) // chunk)):
        at, t = wanted[each.rows].nonzero(as_tuple=True)
        nodes, which = torch.unique(each.places[at, t], return_inverse=True)
        before = torch.empty_like(nodes).index_put((which,), each.places[at, t - 1])
        hidden = model.model(
            input_ids=each.ids.to(device),
            attention_mask=None if each.mask is None else each.mask.to(device),
            position_ids=each.positions.to(device),
            use_cache=False,
        )[0]
        logits = model.lm_head(hidden.flatten(0, 1)[before.to(device)]).to(dtype)
        if temperature != 1:  # a copy of the largest tensor of a step
            logits = logits / temperature
        chosen = each.ids.flatten()[nodes].to(device)
        values = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        places = each.rows[at].to(device), t.to(device)
        result = result.index_put(places, values[which.to(device)].to(result.dtype))
    return result


def _of_any_model(
    model: Any,
    ids: Tensor,
    attention_mask: Tensor,
    wanted: Tensor,
    temperature: float,
    chunk: int,
    dtype: torch.dtype,
) -> Tensor:
    found = []
    for rows in torch.split(torch.arange(len(ids), device=ids.device), chunk):
        seen = attention_mask[rows].long()
        logits = model(ids[rows], attention_mask=seen, use_cache=False).logits[:, :-1].to(dtype)
        logits = logits / temperature
        chosen = logits.gather(2, ids[rows, 1:, None])[..., 0]
        found.append(F.pad(chosen - logits.logsumexp(-1), (1, 0)))
    known = wanted & (torch.arange(ids.shape[1], device=ids.device) > 0)
    return torch.cat(found).to(torch.promote_types(dtype, torch.float32)).where(known, 0.0)
