"""What a log shows for eval-train-mismatch."""

import numpy as np

from rlvr_debug.causes.check import LARGE, Reading, trend
from rlvr_debug.causes.readings import SAME
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
    heldout, training = log.series("heldout"), trend(log.series("reward"))
    kl = log.series("kl")
    if heldout.size < _EVALUATIONS or (not kl.size and training is None):
        return None
    # without a KL, or where three decimals are printed, only a reward that goes somewhere tells of a policy that changes
    moves = bool(training and (training.rises or training.falls))
    coarse = np.array_equal(np.round(log.series("reward"), 3), log.series("reward"))
    trained = moves if coarse or not kl.size else bool(kl.max() > _MOVED)
    same = np.ptp(heldout) <= SAME * max(float(np.abs(heldout).max()), 1e-12)
    frozen = bool(same) and trained and float(np.abs(heldout).max()) > 0
    return Reading(LARGE if frozen else 0, {"count": heldout.size, "score": float(heldout[0])}, 1.0)


def heldout_apart(log: Log) -> Reading | None:
    """Held-out scores far from the training reward before each of them, all along; of rewards that begin at 0."""
    if not {"reward", "heldout"} <= set(log.steps) or log.series("heldout").size < _EVALUATIONS:
        return None
    since = log.steps["heldout"].notna().shift(fill_value=False).cumsum()
    both = log.steps[["reward", "heldout"]].groupby(since).mean().dropna()
    if log.series("reward").min() < 0 or len(both) < _EVALUATIONS:
        return None
    training, heldout = (float(both[name].mean()) for name in ("reward", "heldout"))
    apart = training > 0 and heldout < _APART * training
    return Reading(LARGE if apart else 0, {"training": training, "heldout": heldout}, 0.9)
