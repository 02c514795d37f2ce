"""What a log shows for gradient-explosion."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Reading, graded, trend
from rlvr_debug.logs.log import Log

_NORMS = {MILD: 10.0, LARGE: 100.0}
_GROWTH = 10.0
_CLIPPED = {MILD: 0.3}
_ENTROPY_UP = 3.0
_LOSS_OF_REWARD = {MILD: 0.25, LARGE: 0.5}


def not_finite(log: Log) -> Reading | None:
    counts = {name: log.nonfinite.get(name, 0) for name in ("grad_norm", "loss", "kl")}
    bad = {name: float(count) for name, count in counts.items() if count}
    if not bad:
        return Reading(0, {"none": 0.0})
    what = ", ".join(f"{name} in {count:.0f} rows" for name, count in bad.items())
    return Reading(STOPS, {"rows": bad, "what": what}, 1.0)


def gradient_large(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    median, largest = float(np.median(norms)), float(norms.max())
    strength = graded(median, _NORMS)
    if not strength:
        return Reading(0, {"median": median, "largest": largest})
    values = {"median": median, "largest": largest, "left": 1 / median}
    return Reading(strength, values, min(1.0, np.log10(median) / 6))


def gradient_grows(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    norms = norms[norms > 0]
    if norms.size < 12:
        return None
    third = norms.size // 3
    first, last = float(np.median(norms[:third])), float(np.median(norms[-third:]))
    grows = last >= _GROWTH * first
    values = {"first": first, "last": last, "growth": last / first}
    return Reading(LARGE if grows else 0, values, min(1.0, np.log10(max(1.0, last / first)) / 6))


def reward_collapses(log: Log) -> Reading | None:
    rewards = log.series("reward")
    start, late = rewards[:2], rewards[-(rewards.size // 3) :]
    first, last = float(start.mean()), float(late.mean())
    lost = (first - last) / abs(first) if first else 0.0
    strength = graded(lost, _LOSS_OF_REWARD) if late.max() < start.min() else 0
    return Reading(strength, {"first": first, "last": last}, min(1.0, lost))


def update_too_large(log: Log) -> Reading | None:
    shares = log.series("clipped")
    share = float(np.median(shares))
    return Reading(graded(share, _CLIPPED), {"share": share}, share)


def entropy_rises(log: Log) -> Reading | None:
    found = trend(log.series("entropy"))
    if found is None or found.first < 0:
        return None
    rises = found.rises and found.last >= _ENTROPY_UP * found.first and found.last >= 1
    values = {"first": found.first, "last": found.last}
    return Reading(MILD if rises else 0, values, min(1.0, found.last / 10))
