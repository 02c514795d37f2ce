"""What a log shows for hidden-context."""

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading
from rlvr_debug.causes.readings import NOT_ITS_OWN, other_context
from rlvr_debug.logs.log import Log

__all__ = ["never_its_own", "other_context"]


def never_its_own(log: Log) -> Reading | None:
    """A KL in the first row that no two models have over what one of them samples."""
    if not len(log.steps) or log.steps.index[0] > 1:
        return None
    first = float(log.steps["kl"].iloc[0])
    if not np.isfinite(first):
        return None
    return Reading(LARGE if first >= NOT_ITS_OWN else 0, {"first": first}, 1.0)
