"""What a log shows for sampler-mismatch."""

from dataclasses import replace

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, Reading, correlation, graded, trend
from rlvr_debug.causes.readings import gap
from rlvr_debug.logs.log import Log

_ESS = {MILD: 0.5, LARGE: 0.8}  # of what is lost
_MASKED = {MILD: 0.1, LARGE: 0.5}
_DEFLATED = 0.9
_AGREE = 0.05  # nats per token
_ALONG = 0.7  # correlation with the length
_GROWTH = 2.0
_TEMPERATURES = {MILD: 0.01, LARGE: 0.2}  # of the larger one


def sampler_gap(log: Log) -> Reading | None:
    found = gap(log)
    if found is None:
        return None
    value = float(np.median(found.values))
    values = {"distance": {found.name: value}, "name": found.name, "value": value}
    return Reading(
        graded(value, {LARGE: found.bound}), values, min(1.0, value / (20 * found.bound))
    )


def correction_loses(log: Log) -> Reading | None:
    """What the correction for the sampler leaves of a batch."""
    found: dict[str, float] = {}
    strength = 0
    if (sizes := log.series("correction_ess")).size:
        found["lost"] = 1 - float(np.median(sizes))
        strength = graded(found["lost"], _ESS)
    if (masked := log.series("correction_masked")).size:
        found["masked"] = float(np.median(masked))
        strength = max(strength, graded(found["masked"], _MASKED))
    said = {
        "lost": "its effective sample size is {:.0%} smaller",
        "masked": "{:.0%} of the tokens are masked or capped",
    }
    what = " and ".join(said[name].format(value) for name, value in found.items())
    return Reading(strength, {"shares": found, "what": what}, max(found.values()))


def correction_by_length(log: Log) -> Reading | None:
    """A mean ratio well below 1 between a sampler and a trainer that agree token by token."""
    agree = float(np.median(log.series("sampler_gap")))
    ratio = float(np.median(log.series("sampler_ratio")))
    deflated = agree < _AGREE and ratio < _DEFLATED
    values = {"gap": agree, "ratio": ratio}
    return Reading(LARGE if deflated else 0, values, 1 - min(1.0, ratio))


def gap_grows(log: Log) -> Reading | None:
    """A distance of sampler and trainer that goes with the length of the replies."""
    known = gap(log)
    if known is None:
        return None
    both = replace(log, steps=log.steps.dropna(subset=[known.quantity, "length"]))
    found = gap(both)
    if found is None or found.values.size < 9:
        return None
    along = correlation(both.series("length"), found.values)
    change = trend(found.values)
    grows = (
        change is not None
        and along >= _ALONG
        and change.last >= max(found.bound, _GROWTH * change.first)
    )
    return Reading(MILD if grows else 0, {"along": along, "last": float(found.values[-1])}, along)


def sampled_otherwise(log: Log) -> Reading | None:
    asked, used = log.argument("temperature"), log.argument("generation_kwargs.temperature")
    if asked is None or used is None:
        return None
    apart = abs(used - asked) / max(asked, used, 1e-9)
    return Reading(graded(apart, _TEMPERATURES), {"asked": asked, "used": used}, min(1.0, apart))
