"""logits[t], which predict ids[t + 1], are gathered at ids[t]: the shift is missing."""

STAGE = "logprobs"


def implementation(model, ids, attention_mask, wanted, temperature=1.0, chunk=16, dtype=None):
    import torch

    dtype = dtype or torch.float32
    found = []
    for rows in torch.split(torch.arange(len(ids), device=ids.device), chunk):
        seen = attention_mask[rows].long()
        logits = model(ids[rows], attention_mask=seen, use_cache=False).logits.to(dtype)
        logits = logits / temperature
        chosen = logits.gather(2, ids[rows][..., None])[..., 0]
        found.append(chosen - logits.logsumexp(-1))
    known = wanted.bool() & (torch.arange(ids.shape[1], device=ids.device) > 0)
    return torch.cat(found).to(torch.promote_types(dtype, torch.float32)).where(known, 0.0)
