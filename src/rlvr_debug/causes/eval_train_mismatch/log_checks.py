"""What a log shows for eval-train-mismatch."""

from __future__ import annotations

from rlvr_debug.causes.check import LARGE, Reading, trend
from rlvr_debug.logs.log import Log

_HELDOUT = 0.1


def heldout_stays(log: Log) -> Reading | None:
    training, heldout = trend(log.series("reward")), log.series("heldout")
    if training is None or heldout.size < 2:
        return None
    scale = max(abs(training.last), abs(training.first), 1e-300)
    gain = float(heldout[-1] - heldout[0])
    learns = training.rises and training.change >= _HELDOUT * scale
    stays = learns and gain <= 0.25 * training.change
    return Reading(LARGE if stays else 0, {"training": training.change, "heldout": gain}, 1.0)
