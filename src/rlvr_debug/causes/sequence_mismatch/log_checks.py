"""What a log shows for sequence-mismatch: from outside it looks as a hidden context does, but for how far it goes."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlvr_debug.causes.check import LARGE, MILD, Reading
from rlvr_debug.causes.readings import is_blind, other_context
from rlvr_debug.logs.log import Log

_SPIKE = 300.0  # nats per token, of a whole step
_OVER = 100.0  # times the median
_BACK = 1.0  # nats: of a policy that stays near its reference


def other_sequence(log: Log) -> Reading | None:
    """As other-context; where the trainer still knows what was asked, another sequence is the likelier one of the two."""
    found = other_context(log)
    if found is None:
        return None
    return replace(found, amount=found.amount + (0.0 if is_blind(found) else 0.1))


def kl_spikes(log: Log) -> Reading | None:
    """Single steps with a KL that no policy near its reference has."""
    kl = log.series("kl")
    largest, median = float(kl.max()), float(np.median(kl))
    bound = max(_SPIKE, _OVER * abs(median))
    spikes = kl >= bound
    count = int(spikes.sum())
    step = log.largest_at("kl")
    norms = log.series("grad_norm")
    norm = f" and a gradient norm of {norms.max():.3g}" if norms.size else ""
    values = {
        "largest": largest,
        "median": median,
        "step": step,
        "steps": f"{count} step{'s'[: count != 1]}",
        "bound": bound,
        "norm": norm,
    }
    strength = MILD if count else 0
    if count > 1 and median < _BACK and _with_gradients(log, spikes):
        strength = LARGE
    return Reading(strength, values, min(1.0, np.log10(1 + largest) / 6))


def _with_gradients(log: Log, spikes: NDArray[np.bool_]) -> bool:
    """Return whether most of these rows are among the largest gradients: the KL made them."""
    if "grad_norm" not in log.steps:
        return False
    norms = log.steps["grad_norm"]
    there = norms[log.steps["kl"].notna()].to_numpy(dtype=np.float64)[spikes]
    return bool((there >= _OVER * norms.median()).mean() > 0.5)
