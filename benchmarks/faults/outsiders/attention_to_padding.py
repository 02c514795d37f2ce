"""Padding is on the right, where nothing that is looked at can see it."""

STAGE = "attention_mask"


def implementation(sampled, real):
    import torch

    return torch.ones_like(real)
