"""Group means and spreads are expanded with repeat instead of repeat_interleave: most rollouts get another group's."""

STAGE = "advantages"


def implementation(rewards, scaling, epsilon):
    size = rewards.shape[1]
    flat = rewards.flatten()
    centred = flat - rewards.mean(1).repeat(size)
    if scaling == "group":
        centred = centred / (rewards.std(1).repeat(size) + epsilon)
    elif scaling == "batch":
        centred = centred / (rewards.std() + epsilon)
    return centred.view_as(rewards)
