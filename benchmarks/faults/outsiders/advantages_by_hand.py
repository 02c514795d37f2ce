"""The same advantages from sums and squares."""

STAGE = "advantages"


def implementation(rewards, scaling, epsilon):
    count = rewards.shape[1]
    centred = rewards - rewards.sum(1, keepdim=True) / count
    if scaling == "group":
        spread = (centred.square().sum(1, keepdim=True) / (count - 1)).sqrt()
    elif scaling == "batch":
        around = rewards - rewards.sum() / rewards.numel()
        spread = (around.square().sum() / (rewards.numel() - 1)).sqrt()
    else:
        return centred
    return centred / (spread + epsilon)
