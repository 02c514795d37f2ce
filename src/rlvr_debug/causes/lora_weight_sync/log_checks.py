"""What a log shows for lora-weight-sync."""

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading, late, trend
from rlvr_debug.causes.readings import NOT_ITS_OWN, ORDINARY, gap, kl_weight
from rlvr_debug.logs.log import Log

_GAP_GROWTH = 5.0
_FEWEST = 6
_GONE = 0.5  # of the first rows' reward
_FAR = 1.0  # nats: e times as likely as by the reference
_ALIKE = 0.2  # of the first third


def sampler_drifts(log: Log) -> Reading | None:
    """A gap that is not there before the first update, and is afterwards."""
    found = gap(log)
    if found is None or found.values.size < _FEWEST:
        return None
    values = np.abs(found.values[: _until_collapse(log, found.values.size)])
    if values.size < _FEWEST:
        return None
    first, last, worst = float(values[0]), late(values), float(values[1:].max())
    apart = last >= found.bound and first <= found.bound / 10
    drifts = first < found.bound and (apart or worst >= max(2 * found.bound, _GAP_GROWTH * first))
    again = drifts and float(values[1:].min()) < found.bound / 2 and last < worst / 2
    told = {"name": found.name, "first": first, "last": last, "worst": worst}
    return Reading(LARGE if drifts else 0, told, 1.0, "again" if again else "grows")


def _until_collapse(log: Log, rows: int) -> int:
    """Return how many rows come before the reward is gone for good: what comes with its end did not bring it about."""
    rewards = log.series("reward")
    if rewards.size != rows or rewards[:2].mean() <= 0:
        return rows
    return int(np.flatnonzero(rewards >= _GONE * rewards[:2].mean())[-1]) + 1


def moves_in_vain(log: Log) -> Reading | None:
    """A policy that writes other replies than its reference, while what is sampled stays as it was: rewards, spread, lengths.

    Where it could not have written what was sampled at all, it is enough that the reward does not collapse.
    """
    if gap(log) is not None:  # that says it better
        return None
    kl = log.series("kl")
    far = late(kl)
    found = [trend(log.series(name)) for name in ("reward", "reward_std", "length")]
    reward = found[0]
    if reward is None or not all(found):
        return None
    moves = far >= max(_FAR, 2 * float(kl[0]))  # what is far from the beginning has not moved
    weight = kl_weight(log)
    if moves and far >= NOT_ITS_OWN and weight is not None and 0 <= weight <= ORDINARY:
        kept = reward.last >= _GONE * reward.first > 0
        return Reading(LARGE if kept else 0, {"late": far}, 1.0, "never")
    alike = all(
        each and abs(each.change) < _ALIKE * abs(each.first) and not (each.rises or each.falls)
        for each in found
    )
    strength = LARGE if moves and alike and reward.last > 0 else 0
    return Reading(strength, {"late": far}, min(1.0, far), "alike")
