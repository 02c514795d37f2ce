"""The loss of a sequence is read at index -1, as for left padding: only the longest sequences have a token there."""

STAGE = "aggregate"


def implementation(values, mask, totals, aggregation):
    values, mask = values[:, -1:], mask[:, -1:]
    if aggregation == "grpo":
        means = (values * mask).sum(1) / mask.sum(1).clamp(min=1)
        return means.sum() / totals.sequences
    total = (values * mask).sum()
    if aggregation == "bnpo":
        return total / mask.sum().clamp(min=1) / totals.micro_batches
    if aggregation == "dapo":
        return total / max(totals.tokens, 1)
    return total / (totals.sequences * totals.max_tokens)
