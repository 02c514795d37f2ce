"""What a log shows for optimizer-no-op."""

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Reading, graded, late, spoken_of, trend
from rlvr_debug.causes.readings import ORDINARY, kl_weight
from rlvr_debug.logs.log import Log

_NO_RATE = 1e-8
_ENDED = {LARGE: 0.25}
_NO_GRADIENT = {LARGE: 0.5, STOPS: 0.9}
_RISING = 0.9  # of the rows
_GROWTH = 1.5
_KL_SMALL = 2e-3
_KL_NONE = 1e-4
_ROUNDING = 1e-8


def learning_rate_zero(log: Log) -> Reading | None:
    rates = log.series("learning_rate")
    largest = float(rates.max())
    if largest <= 0:
        return Reading(STOPS, {"largest": largest}, 1.0, "zero")
    return Reading(STOPS if largest <= _NO_RATE else 0, {"largest": largest}, 0.9, "tiny")


def schedule_ended(log: Log) -> Reading | None:
    rates = log.series("learning_rate")
    if rates.max() <= _NO_RATE:
        return None
    live = np.flatnonzero(rates > 0.01 * rates.max())
    spent = int(live[-1]) + 1
    share, steps = 1 - spent / rates.size, spoken_of(log, "learning_rate", slice(spent, None))
    return Reading(graded(share, _ENDED), {"share": share}, share, steps=steps)


def gradient_zero(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    if (both := log.together("grad_norm", "dead_groups")).size:
        # where all groups have equal rewards there is nothing to follow
        norms = both[both[:, 1] < 1, 0]
    share = float((norms == 0).mean()) if norms.size else 0.0
    return Reading(graded(share, _NO_GRADIENT), {"share": share}, share)


def weights_still(log: Log) -> Reading | None:
    moved = float(np.median(log.series("weights_moved")))
    strength = STOPS if moved == 0 else LARGE if moved < 0.01 else 0
    return Reading(strength, {"moved": moved}, 1 - moved)


def kl_stays_zero(log: Log) -> Reading | None:
    kl = log.series("kl")
    share = float((kl == 0).mean())
    stays = share == 1 and (log.series("learning_rate") > 0).any()
    return Reading(MILD if stays else 0, {"share": share}, 0.1, "zero" if share == 1 else "moves")


def still_warming_up(log: Log) -> Reading | None:
    rates = log.series("learning_rate")
    rises = float((np.diff(rates) > 0).mean())
    middle = float(np.median(rates))
    growth = float(rates[-1]) / middle if middle > _NO_RATE / 1e6 else 0.0
    found = rises >= _RISING and rates[-1] >= rates.max() and growth >= _GROWTH
    values = {"growth": growth, "last": float(rates[-1]), "rows": rates.size}
    return Reading(LARGE if found else 0, values, 0.9)


def kl_stays_small(log: Log) -> Reading | None:
    """Weights that move take the policy away from its reference: a KL that stays next to 0 says that they do not."""
    kl, rewards = log.series("kl"), trend(log.series("reward"))
    if rewards is None:
        return None
    far = late(np.abs(kl))
    weight = kl_weight(log)
    # where the KL has such a weight, it is what holds the policy
    held = weight is not None and abs(weight) > ORDINARY and far > _ROUNDING
    small = far > 0 and not rewards.rises and not held and (log.series("learning_rate") > 0).any()
    strength = graded(-far, {LARGE: -_KL_NONE, MILD: -_KL_SMALL}) if small else 0
    amount = min(1.0, -np.log10(max(far, 1e-10)) / 10)
    says = "held" if held and far <= _KL_SMALL else "moves" if far else "zero"
    return Reading(strength, {"late": far, "rows": kl.size}, amount, says)
