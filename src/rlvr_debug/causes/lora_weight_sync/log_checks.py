"""What a log shows for lora-weight-sync."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, late, trend
from rlvr_debug.causes.sampler_gap import gap
from rlvr_debug.logs.log import Array, Log

_GAP_GROWTH = 5.0
_FEWEST = 6
_MOVED = 0.05  # nats that a policy has left its reference by
_STILL = 1.5  # standard errors between thirds
_ERRORS = 3.0
_SEEN = 0.2  # of the reward
_FAR = 1.0  # nats
_ALIKE = 0.2  # of the first third


def sampler_drifts(log: Log) -> Reading | None:
    """A gap that is not there before the first update, and is afterwards."""
    found = gap(log)
    if found is None or found.values.size < _FEWEST:
        return None
    values = np.abs(found.values)
    first, last, worst = float(values[0]), late(values), float(values[1:].max())
    apart = last >= found.bound and first <= found.bound / 10
    drifts = first < found.bound and (apart or worst >= max(2 * found.bound, _GAP_GROWTH * first))
    again = drifts and float(values[1:].min()) < found.bound / 2 and last < worst / 2
    told = {"name": found.name, "first": first, "last": last, "worst": worst}
    return Reading(LARGE if drifts else 0, told, 1.0, "again" if again else "grows")


def moves_in_vain(log: Log) -> Reading | None:
    """A policy that moves while what is sampled stays as it was: rewards, their spread and lengths."""
    if gap(log) is not None:  # that says it better
        return None
    far = late(log.series("kl"))
    thirds = [trend(log.series(name)) for name in ("reward", "reward_std", "length")]
    found = [each for each in thirds if each is not None]
    if len(found) < len(thirds):
        return None
    reward = found[0]
    # that nothing changes says something where a change would have been seen
    sees = _ERRORS * _error(log.series("reward")) <= _SEEN * abs(reward.first)
    still = sees and all(abs(each.z) < _STILL for each in found)
    earns = reward.last > 0
    strength = MILD if far >= _MOVED and still and earns else 0
    # e times as likely as by the reference, and yet all that is written and earned is as before
    alike = all(abs(each.change) < _ALIKE * abs(each.first) for each in found)
    if far >= _FAR and alike and earns:
        strength = LARGE
    return Reading(strength, {"late": far}, min(1.0, far))


def _error(values: Array) -> float:
    """Return the standard error of the difference of the means of two thirds."""
    third = values.size // 3
    return float(np.sqrt((values[:third].var(ddof=1) + values[-third:].var(ddof=1)) / third))
