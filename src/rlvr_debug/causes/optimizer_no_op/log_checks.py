"""What a log shows for optimizer-no-op."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Reading, graded
from rlvr_debug.logs.log import Log

_NO_RATE = 1e-8
_ENDED = {LARGE: 0.25}
_NO_GRADIENT = {LARGE: 0.5, STOPS: 0.9}


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
    share = 1 - (int(live[-1]) + 1) / rates.size
    return Reading(graded(share, _ENDED), {"share": share}, share)


def gradient_zero(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    share = float((norms == 0).mean())
    return Reading(graded(share, _NO_GRADIENT), {"share": share}, share)


def weights_still(log: Log) -> Reading | None:
    moved = float(np.median(log.series("weights_moved")))
    strength = STOPS if moved == 0 else LARGE if moved < 0.01 else 0
    return Reading(strength, {"moved": moved}, 1 - moved)


def kl_stays_zero(log: Log) -> Reading | None:
    kl = log.series("kl")
    share = float((kl == 0).mean())
    stays = share == 1 and (log.series("learning_rate") > 0).any()
    return Reading(MILD if stays else 0, {"share": share}, 0.1)
