"""All after the first end of a reply is masked (TRL's completion mask by the first EOS), in rollouts of several replies."""

STAGE = "loss_mask"


def implementation(sampled, real):
    import torch

    before = torch.zeros_like(sampled)
    before[:, 1:] = sampled[:, :-1]
    reply = (sampled & ~before).cumsum(1)
    return sampled & real & (reply == 1)
