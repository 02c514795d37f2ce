"""The same log-probabilities, of padded sequences by log_softmax."""

STAGE = "logprobs"


def implementation(model, ids, attention_mask, wanted, temperature=1.0, chunk=16, dtype=None):
    import torch

    dtype = dtype or torch.float32
    kept = torch.promote_types(dtype, torch.float32)
    found = []
    for start in range(0, len(ids), chunk):
        some = ids[start : start + chunk]
        seen = attention_mask[start : start + chunk].long()
        logits = model(some, attention_mask=seen, use_cache=False).logits[:, :-1].to(dtype)
        every = (logits / temperature).log_softmax(-1)
        next_ones = every.gather(2, some[:, 1:, None])[..., 0].to(kept)
        first = next_ones.new_zeros(len(some), 1)
        found.append(torch.cat([first, next_ones], 1))
    return torch.cat(found).masked_fill(~wanted.bool(), 0.0)
