"""What a log shows for kl-penalty."""

from __future__ import annotations

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, graded
from rlvr_debug.causes.kl_and_loss import ORDINARY, kl_weight, large_at_first, rows_of
from rlvr_debug.logs.log import Log

_KL = {LARGE: 1.0}
_KL_AT_FIRST = {MILD: 0.01}
_REWARDED = 0.02  # weight below 0 by which the loss pays for a KL
_MOVES = 5e-3  # nats: a policy that the KL does not hold
_NOT_MEANT = 3.0  # a weight that nobody asks for where the policy moves
_BELOW = 1e-4
_NEGATIVE = 0.2
_TOGETHER = 0.7  # correlation of loss and KL from step to step


def kl_explodes(log: Log) -> Reading | None:
    kl = log.series("kl")
    late, spike = float(np.median(kl[-max(1, kl.size // 3) :])), float(kl.max())
    strength = graded(late, _KL)
    amount = min(1.0, np.log10(1 + late) / 6) if strength else 0.0
    return Reading(strength, {"late": late, "spike": spike}, amount)


def kl_at_first(log: Log) -> Reading | None:
    if "kl" not in log.steps or not len(log.steps) or log.steps.index[0] > 1:
        return None
    first = float(log.steps["kl"].iloc[0])
    if not np.isfinite(first):
        return None
    return Reading(graded(first, _KL_AT_FIRST), {"first": first}, min(1.0, first))


def kl_weight_large(log: Log) -> Reading | None:
    weight = kl_weight(log)
    kl, loss = rows_of(log)
    late = float(np.median(kl[-max(1, kl.size // 3) :])) if kl.size else 0.0
    if weight is None:
        return Reading(0, {"late": late}, says="none")
    # a loss of all terms that is too large has another cause, and the policy moves all the same
    moves = late >= _MOVES and late < 1 and large_at_first(log)
    values = {"weight": weight, "late": late}
    if float(np.corrcoef(kl, loss)[0, 1]) * np.sign(weight) < _TOGETHER:
        return Reading(0, values, says="large")
    if weight < -_REWARDED and late >= _MOVES:
        return Reading(LARGE, values, 1.0, "rewarded")
    strength = LARGE if weight > ORDINARY and not (moves and weight > _NOT_MEANT) else 0
    return Reading(strength, values, 1.0, "large")


def kl_negative(log: Log) -> Reading | None:
    kl = log.series("kl")
    share = float((kl < -_BELOW).mean())
    return Reading(
        MILD if share >= _NEGATIVE else 0, {"share": share, "least": float(kl.min())}, share
    )
