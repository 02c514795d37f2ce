"""What a log shows for gradient-explosion."""

from collections.abc import Sequence

import numpy as np

from rlvr_debug.causes.check import LARGE, MILD, STOPS, Reading, graded, late, spoken_of, trend
from rlvr_debug.causes.readings import NOT_ITS_OWN, ORDINARY, beyond, kl_weight
from rlvr_debug.logs.log import Array, Log

_WORDS = {"grad_norm": "gradient norm", "loss": "loss", "kl": "KL"}
_NORMS = {MILD: 10.0, LARGE: 100.0}
_GROWTH = 10.0
_CLIPPED = {MILD: 0.3}
_SPIKE = 1e3
_OFTEN = 0.05  # of the rows
_FAR = 1.0  # nats per token
_ENTROPY_UP = 3.0
_LOST = 0.1  # of the first row
_LUCK = 0.25  # deviations: of one right among 16
_LOSS_OF_REWARD = {MILD: 0.25, LARGE: 0.5}
_REUSED = {MILD: 6, LARGE: 8}
_NEVER_CLIPPED = {LARGE: 1.0}


def not_finite(log: Log) -> Reading | None:
    logged = [name for name in ("grad_norm", "loss", "kl") if log.has(name)]
    bad = {name: float(log.nonfinite[name]) for name in logged if name in log.nonfinite}
    if not bad:
        names = " and ".join(", ".join(_WORDS[name] for name in logged).rsplit(", ", 1))
        what = f"{names[0].upper()}{names[1:]} {'are' if len(logged) > 1 else 'is'}"
        return Reading(0, {"none": 0.0, "what": what})
    what = ", ".join(f"{name} in {count:.0f} row{'s'[: count != 1]}" for name, count in bad.items())
    steps = sorted({step for name in bad for step in log.bad_steps.get(name, ())})
    values = {"rows": bad, "what": what, "since": _since(steps, log)}
    return Reading(STOPS, values, 1.0, steps=((steps[0], steps[-1]),) if steps else (), of=(*bad,))


def _since(steps: Sequence[float], log: Log) -> str:
    """Return from which of these steps on nothing else was logged, or else the first, as words."""
    if not steps:
        return ""
    goes_on = {step for step in log.steps.index if step >= steps[0]} <= {*steps}
    return f", from step {steps[0]:g} on" if goes_on else f", first in step {steps[0]:g}"


def gradient_large(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    median, largest = float(np.median(norms)), float(norms.max())
    left = 1 / median if median else np.inf
    values = {"median": median, "largest": largest, "left": left}
    return Reading(graded(median, _NORMS), values, min(1.0, np.log10(max(1.0, median)) / 6))


def gradient_grows(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    norms = norms[norms > 0]
    if norms.size < 12:
        return None
    third = norms.size // 3
    first, last = float(np.median(norms[:third])), float(np.median(norms[-third:]))
    # below 1, the usual clip leaves it as it is
    grows = last >= _GROWTH * first and last >= 1
    values = {"first": first, "last": last, "growth": last / first}
    return Reading(LARGE if grows else 0, values, min(1.0, np.log10(max(1.0, last / first)) / 6))


def reward_collapses(log: Log) -> Reading | None:
    rewards = log.series("reward")
    start, end = rewards[:2], rewards[-(rewards.size // 3) :]
    first, last = float(start.mean()), float(end.mean())
    lost = (first - last) / abs(first) if first else 0.0
    # of a first row that the first update already spoiled the next one, it alone is the start
    below = end.max() < start.min() or (last <= _LOST * start[0] and end.max() < start[0])
    lost = max(lost, 1 - last / start[0]) if start[0] > 0 else lost
    strength = graded(lost, _LOSS_OF_REWARD) if below and _earned(log, start) else 0
    steps = spoken_of(log, "reward", slice(2), slice(-(rewards.size // 3), None))
    return Reading(strength, {"first": first, "last": last}, min(1.0, lost), steps=steps)


def _earned(log: Log, start: Array) -> bool:
    """Return whether the first rows earned more than a rollout or two of luck."""
    spread = log.series("reward_std")[:2]
    return not spread.size or float(np.abs(start).max()) >= _LUCK * float(spread.max())


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


def gradient_spikes(log: Log) -> Reading | None:
    norms = log.series("grad_norm")
    median, largest = float(np.median(norms)), float(norms.max())
    step = log.largest_at("grad_norm")
    bound = max(_SPIKE, _SPIKE * median)
    spikes = int((norms >= bound).sum())
    # one or two steps in a long run are clipped away
    strength = (LARGE if spikes >= max(2, _OFTEN * norms.size) else MILD) if spikes else 0
    values = {
        "median": median,
        "largest": largest,
        "step": step,
        "rows": f"{spikes} row{'s'[: spikes != 1]}",
        "bound": bound,
        "kl": _kl_at(log, step),
    }
    return Reading(strength, values, min(1.0, np.log10(max(1.0, largest)) / 8))


def _kl_at(log: Log, step: int) -> str:
    """Return what the KL was in that step, as words."""
    if "kl" not in log.steps or step not in log.steps.index:
        return ""
    value = float(log.steps["kl"].loc[step])
    return f", with a KL of {value:.3g} nats in the same step" if np.isfinite(value) else ""


def kl_runs_away(log: Log) -> Reading | None:
    """A KL above 1 nat that nothing of the KL term explains: the updates carry the policy off."""
    kl = log.series("kl")
    far, weight = late(kl), kl_weight(log)
    first = int(np.argmax(kl >= _FAR)) + 1 if (kl >= _FAR).any() else 0
    rewards = trend(log.series("reward"))
    # what earns more and more may well go far
    earns = rewards is not None and rewards.rises
    is_far = _FAR <= far < NOT_ITS_OWN
    away = is_far and weight is not None and 0 <= weight <= ORDINARY and not earns
    values = {"late": far, "weight": weight or 0.0, "row": first}
    return Reading(LARGE if away else 0, values, 1.0)


def batch_reused(log: Log) -> Reading | None:
    return beyond(log, "num_iterations", _REUSED)


def clip_wide(log: Log) -> Reading | None:
    return beyond(log, "epsilon", _NEVER_CLIPPED)
