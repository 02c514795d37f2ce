"""What a log shows for lora-weight-sync."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading, trend
from rlvr_debug.causes.sampler_gap import gap
from rlvr_debug.logs.log import Log

_GAP_GROWTH = 5.0


def sampler_drifts(log: Log) -> Reading | None:
    found = gap(log)
    change = trend(np.abs(found.values)) if found else None
    if found is None or change is None:
        return None
    drifts = change.rises and change.last >= max(found.bound, _GAP_GROWTH * change.first)
    values = {"name": found.name, "first": change.first, "last": change.last}
    return Reading(LARGE if drifts else 0, values, 1.0)
