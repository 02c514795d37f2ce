"""The rule of decide.py on arrays: one study, thousands of simulated ones, or one at many sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlvr_debug.verdicts.statistics import Floats, Sample, equivalence_p, holm, welch_p

__all__ = [
    "ABSENT",
    "PRESENT",
    "STATUSES",
    "UNTESTED",
    "Effects",
    "Measured",
    "arm_status",
    "compare",
    "learns",
    "status",
]

STATUSES = (
    *("pending", "validated", "partially_validated", "invalidated", "inconclusive"),
    "not_applicable",
)
PRESENT, UNTESTED, ABSENT = 1, 0, -1

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Measured:
    """Gains in held-out reward, [0, 1], of an arm: at the training temperature, and greedy."""

    sampled: Sample
    greedy: Sample


@dataclass(frozen=True)
class Effects:
    """What is shown of each arm's effect. All arrays: (..., arms).

    in_sd is the effect in the two sides' pooled standard deviations over seeds; NaN without spread.
    tested: the sides are different runs. known: there is more than one seed. significant: surely above 0. gained: significant, and at least
    the minimum effect. large: so when greedy as well. equivalent: surely within the minimum effect of 0.
    """

    effect: Floats
    effect_greedy: Floats
    in_sd: Floats
    p: Floats
    p_holm: Floats
    p_equivalence: Floats
    tested: Bools
    known: Bools
    significant: Bools
    gained: Bools
    large: Bools
    equivalent: Bools

    def of(self, members: Any) -> Effects:
        """Those of some arms: an index of the last axis."""
        return Effects(*(getattr(self, field.name)[..., members] for field in fields(self)))


def compare(
    better: Measured,
    worse: Measured,
    alpha: float,
    minimum: float,
    tests: ArrayLike = True,
) -> Effects:
    """Effects of all arms that are corrected together, which are the last axis.

    better, worse: the sides of each arm such that a cause's effect is positive.
    minimum: the smallest effect that matters, in held-out reward.
    tests: (arms,), whether the sides are different runs. An arm that changes nothing has effect 0 by
    construction: it tests nothing, and the correction does not count it.
    """
    a, b = better.sampled, worse.sampled
    effect, greedy, p = np.broadcast_arrays(
        a.mean - b.mean, better.greedy.mean - worse.greedy.mean, welch_p(a, b)
    )
    spread = np.sqrt((a.sd**2 + b.sd**2) / 2)
    p_holm, p_equivalence = holm(np.where(tests, p, np.nan)), equivalence_p(a, b, minimum)
    significant = (p_holm < alpha) & (effect > 0)
    gained = significant & (effect >= minimum)
    return Effects(
        effect=effect,
        effect_greedy=greedy,
        in_sd=effect / np.where(spread > 0, spread, np.nan),
        p=p,
        p_holm=p_holm,
        p_equivalence=p_equivalence,
        tested=np.broadcast_to(np.asarray(tests), effect.shape),
        known=np.broadcast_to(np.isfinite(spread), effect.shape),
        significant=significant,
        gained=gained,
        large=gained & (greedy >= minimum),
        equivalent=(p_equivalence < alpha) & (np.abs(greedy) < minimum),
    )


def status(effects: Effects, mechanism: ArrayLike) -> NDArray[np.str_]:
    """A hypothesis' status. effects: of its arms; mechanism: PRESENT, UNTESTED or ABSENT. Both (...)."""
    present, absent = np.equal(mechanism, PRESENT), np.equal(mechanism, ABSENT)
    none = effects.equivalent.all(-1)
    # a mechanism that no arm takes away may be a symptom of something else
    unmended = present & ~effects.tested.any(-1)
    return np.select(
        [
            present & effects.large.any(-1),
            present & (effects.significant.any(-1) | (none & ~unmended)),
            absent & effects.known.all(-1) & ~effects.gained.any(-1),
            none & ~unmended,
        ],
        ["validated", "partially_validated", "invalidated", "invalidated"],
        "inconclusive",
    )


def arm_status(effects: Effects) -> NDArray[np.str_]:
    """What each arm's effect says by itself, whatever the mechanism."""
    return np.select(
        [effects.large, effects.equivalent, effects.significant],
        ["validated", "invalidated", "partially_validated"],
        "inconclusive",
    )


def learns(arm: Mapping[Any, Any], minimum_effect: float) -> bool | None:
    """Return whether the arm gains at least the minimum over its baseline, None where that cannot be told.

    arm: a row of arms.csv.
    """
    if arm["gain_low"] > 0 and arm["gain"] >= minimum_effect:
        return True
    return False if arm["gain_high"] < minimum_effect else None
