"""What a log shows for kl-penalty."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, graded
from rlvr_debug.logs.log import Log

_KL = {LARGE: 1.0}
_KL_AT_FIRST = {MILD: 0.01}


def kl_explodes(log: Log) -> Reading | None:
    kl = log.series("kl")
    late, spike = float(np.median(kl[-max(1, kl.size // 3) :])), float(kl.max())
    strength = graded(late, _KL)
    amount = min(1.0, np.log10(1 + late) / 6) if strength else 0.0
    return Reading(strength, {"late": late, "spike": spike}, amount)


def kl_at_first(log: Log) -> Reading | None:
    if "kl" not in log.steps or not len(log.steps) or log.steps.index[0] > 1:
        return None
    first = float(log.steps["kl"].iloc[0])
    if not np.isfinite(first):
        return None
    return Reading(graded(first, _KL_AT_FIRST), {"first": first}, min(1.0, first))
