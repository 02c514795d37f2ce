"""What a log shows for kl-penalty."""

from dataclasses import replace

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, correlation, graded, late
from rlvr_debug.causes.readings import (
    MOVES,
    NOT_ITS_OWN,
    ORDINARY,
    beyond,
    first_kl,
    loss_is_large,
    rows_of,
    shown_weight,
)
from rlvr_debug.logs.log import Log

_KL = {LARGE: 1.0}
_KL_AT_FIRST = {MILD: 0.01, LARGE: 0.5}
_REWARDED = 0.02  # weight below 0 by which the loss pays for a KL
_BELOW = 1e-4
_NEGATIVE = 0.2
_TOGETHER = 0.7  # correlation of loss and KL from step to step
_SURELY = 0.9
_FAR_ABOVE = 10  # times the weight that the settings give the KL
_BETA = {LARGE: ORDINARY}


def kl_explodes(log: Log) -> Reading | None:
    kl = log.series("kl")
    far, spike = late(kl), float(kl.max())
    strength = graded(far, _KL)
    amount = min(1.0, np.log10(1 + far) / 6) if strength else 0.0
    return Reading(strength, {"late": far, "spike": spike}, amount)


def kl_at_first(log: Log) -> Reading | None:
    first = first_kl(log)
    if first is None:
        return None
    strength = graded(first, _KL_AT_FIRST) if first < NOT_ITS_OWN else 0
    says = "near" if first < NOT_ITS_OWN else "far"
    return Reading(strength, {"first": first}, min(1.0, first), says)


def kl_weight_large(log: Log) -> Reading | None:
    weight, given = shown_weight(log), log.argument("beta")
    kl, loss = rows_of(log)
    far = late(kl)
    if weight is None:
        return Reading(0, {"late": far}, says="none")
    values = {"weight": weight, "late": far}
    along = correlation(kl, loss) * np.sign(weight)
    # that the settings are not what the loss has takes more than chance
    is_ordinary = given is not None and given <= ORDINARY and weight > 0
    least = _FAR_ABOVE * given if given is not None and is_ordinary else 0.0
    if along < (_SURELY if least else _TOGETHER) or abs(weight) < least:
        return Reading(0, values, says="none")
    if weight < -_REWARDED and far >= MOVES:
        return Reading(LARGE, values, 1.0, "rewarded")
    strength = LARGE if weight > ORDINARY and not loss_is_large(log, weight) else 0
    return Reading(strength, values, 1.0, "large")


def kl_negative(log: Log) -> Reading | None:
    kl = log.series("kl")
    share = float((kl < -_BELOW).mean())
    return Reading(
        MILD if share >= _NEGATIVE else 0, {"share": share, "least": float(kl.min())}, share
    )


def beta_large(log: Log) -> Reading | None:
    found = beyond(log, "beta", _BETA)
    if found is None or not found.values["value"]:
        return found
    return replace(found, values={**found.values, "even": 1 / found.values["value"]})
