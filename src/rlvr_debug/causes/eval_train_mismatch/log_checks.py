"""What a log shows for eval-train-mismatch."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading, trend
from rlvr_debug.causes.groups import SAME
from rlvr_debug.logs.log import Log

_HELDOUT = 0.1
_APART = 0.5
_EVALUATIONS = 3
_MOVED = 1e-3  # nats


def heldout_stays(log: Log) -> Reading | None:
    training, heldout = trend(log.series("reward")), log.series("heldout")
    if training is None or heldout.size < 2:
        return None
    scale = max(abs(training.last), abs(training.first), 1e-300)
    gain = float(heldout[-1] - heldout[0])
    learns = training.rises and training.change >= _HELDOUT * scale
    stays = learns and gain <= 0.25 * training.change
    return Reading(LARGE if stays else 0, {"training": training.change, "heldout": gain}, 1.0)


def heldout_frozen(log: Log) -> Reading | None:
    """Held-out scores that are one number to the last digit while the policy that is trained changes."""
    heldout, rewards = log.series("heldout"), log.series("reward")
    if heldout.size < _EVALUATIONS or rewards.size < 2:
        return None
    kl = log.series("kl")
    trained = bool(kl.max() > _MOVED) if kl.size else bool(np.ptp(rewards) > 0)
    same = np.ptp(heldout) <= SAME * max(float(np.abs(heldout).max()), 1e-12)
    frozen = bool(same) and trained and float(np.abs(heldout).max()) > 0
    return Reading(LARGE if frozen else 0, {"count": heldout.size, "score": float(heldout[0])}, 1.0)


def heldout_apart(log: Log) -> Reading | None:
    """Held-out scores far from the training reward of the same steps, all along."""
    if not {"reward", "heldout"} <= set(log.steps):
        return None
    both = log.steps[["reward", "heldout"]].ffill().loc[log.steps["heldout"].notna()].dropna()
    if len(both) < 3:
        return None
    training, heldout = float(both["reward"].mean()), float(both["heldout"].mean())
    ratio = heldout / training if training > 0 else 1.0
    apart = training > 0 and ratio < _APART
    return Reading(LARGE if apart else 0, {"training": training, "heldout": heldout}, 0.9)
