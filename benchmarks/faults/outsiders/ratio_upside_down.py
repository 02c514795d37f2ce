"""Old policy over policy."""

STAGE = "importance_ratio"


def implementation(logprobs, old, mask, level):
    difference = old - logprobs
    if level == "sequence":
        difference = (difference * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(1)
    return difference.exp()
