"""What a log shows for hidden-context."""

from rlvr_debug.causes.check import LARGE, Reading
from rlvr_debug.causes.readings import NOT_ITS_OWN, first_kl, other_context
from rlvr_debug.logs.log import Log

__all__ = ["never_its_own", "other_context"]


def never_its_own(log: Log) -> Reading | None:
    """A KL in the first row that no two models have over what one of them samples."""
    first = first_kl(log)
    if first is None:
        return None
    return Reading(LARGE if first >= NOT_ITS_OWN else 0, {"first": first}, 1.0)
