"""Healthy: the clipped objective by cases of the advantage's sign instead of a minimum of products."""

import torch

STAGE = "clipped_objective"


def implementation(ratio, advantages, low, high, delta):
    per_row = advantages[:, None]
    rewarded = ratio.clamp(max=min(1 + high, delta) if delta else 1 + high)
    punished = ratio.clamp(min=1 - low)
    if delta:
        punished = punished.clamp(max=max(delta, 1 + high))
    return torch.where(per_row > 0, rewarded, punished) * per_row
