"""What a log shows for eval-train-mismatch."""

from __future__ import annotations

from rlvr_debug.causes.check import LARGE, Reading, trend
from rlvr_debug.logs.log import Log

_HELDOUT = 0.1
_APART = 0.5


def heldout_stays(log: Log) -> Reading | None:
    training, heldout = trend(log.series("reward")), log.series("heldout")
    if training is None or heldout.size < 2:
        return None
    scale = max(abs(training.last), abs(training.first), 1e-300)
    gain = float(heldout[-1] - heldout[0])
    learns = training.rises and training.change >= _HELDOUT * scale
    stays = learns and gain <= 0.25 * training.change
    return Reading(LARGE if stays else 0, {"training": training.change, "heldout": gain}, 1.0)


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
