"""What a log shows for token-masking."""

from rlvr_debug.causes.check import LARGE, Reading
from rlvr_debug.logs.log import Log


def trained_tokens(log: Log) -> Reading | None:
    both = log.steps[["sampled_tokens", "trained_tokens"]].dropna()
    if not len(both):
        return None
    sampled, trained = float(both["sampled_tokens"].sum()), float(both["trained_tokens"].sum())
    off = abs(trained - sampled) / max(sampled, 1.0)
    values = {"ratio": trained / max(sampled, 1.0), "trained": trained, "sampled": sampled}
    return Reading(LARGE if off > 0.001 else 0, values, min(1.0, off))
