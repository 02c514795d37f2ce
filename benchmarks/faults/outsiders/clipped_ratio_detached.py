"""CISPO's weight, a clipped ratio without a gradient, but the log-probability that it should weight is forgotten."""

STAGE = "clipped_objective"


def implementation(ratio, advantages, low, high, delta):
    weight = ratio.clamp(1 - low, 1 + high)
    if delta:
        weight = weight.clamp(max=delta)
    # 0 * ratio keeps the graph where there is no KL either
    return weight.detach() * advantages[:, None] + 0 * ratio
