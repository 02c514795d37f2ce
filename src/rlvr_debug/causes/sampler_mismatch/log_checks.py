"""What a log shows for sampler-mismatch."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading, graded
from rlvr_debug.causes.sampler_gap import gap
from rlvr_debug.logs.log import Log


def sampler_gap(log: Log) -> Reading | None:
    found = gap(log)
    if found is None:
        return None
    value = float(np.median(found.values))
    values = {"distance": {found.name: value}, "name": found.name, "value": value}
    return Reading(
        graded(value, {LARGE: found.bound}), values, min(1.0, value / (100 * found.bound))
    )
