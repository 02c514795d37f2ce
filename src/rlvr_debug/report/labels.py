"""How an arm's training went, in the words of the original's template: the trend of its reward, and its stability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

_WIDER = 2.0  # times the control's spread that is oscillation
_EXTREME = 10.0  # times the control's gradient norm or KL, an order of magnitude
_BOUNDS = {"grad_norm_max": 100.0, "kl_max": 1.0}  # and no less, as what a log is read for


@dataclass(frozen=True)
class Course:
    """Of one arm, medians over seeds.

    trend: improving, declining, oscillating or stable; stability: stable, unstable or gradient explosion.
    reversals: share of steps at which the reward turns, two thirds of noise; spread: standard deviation around its own
    straight line, in reward; grad_norm, kl: the largest of a run, before clipping and in nats.
    """

    trend: str
    stability: str
    reversals: float
    spread: float
    grad_norm: float
    kl: float


def courses(tables: Mapping[str, pd.DataFrame]) -> dict[str, Course]:
    """Return the course of every arm. tables: runs, arms and curves.

    The trend is that of the interval of arms.csv; without one, an arm oscillates whose reward spreads around its line at
    least twice as far as the control's. Unstable is a KL of 1 nat and ten times the control's, an explosion a gradient
    norm of 100 and ten times the control's.
    """
    figures = {
        str(arm): _figures(group) for arm, group in tables["curves"].groupby("arm", sort=False)
    }
    largest = tables["runs"].groupby("arm")[list(_BOUNDS)].median()
    rows = {row["arm"]: row for row in tables["arms"].to_dict("records")}
    _, usual = figures["control"]
    by_arm = {}
    for arm, (reversals, spread) in figures.items():
        own = largest.loc[arm]
        extreme = (own >= _EXTREME * largest.loc["control"]) & (own >= pd.Series(_BOUNDS))
        by_arm[arm] = Course(
            _trend(rows[arm], spread >= _WIDER * usual > 0),
            _stability(*extreme),
            reversals,
            spread,
            *own.astype(float),
        )
    return by_arm


def _figures(curves: pd.DataFrame) -> tuple[float, float]:
    """Reversals and spread, medians over the arm's seeds."""
    each = []
    for _, run in curves.groupby("seed"):
        rewards = run.sort_values("step")["reward"].to_numpy(dtype=np.float64)
        steps = np.arange(rewards.size)
        turns = np.diff(np.sign(np.diff(rewards))) != 0
        line = (
            np.polynomial.Polynomial.fit(steps, rewards, 1)(steps) if rewards.size > 2 else rewards
        )
        each.append((turns.mean() if turns.size else 0.0, (rewards - line).std()))
    reversals, spread = np.median(each, axis=0)
    return float(reversals), float(spread)


def _trend(arm: Mapping[Any, Any], oscillates: bool) -> str:
    if arm["slope_low"] > 0:
        return "improving"
    if arm["slope_high"] < 0:
        return "declining"
    return "oscillating" if oscillates else "stable"


def _stability(norm_is_extreme: bool, kl_is_extreme: bool) -> str:
    if norm_is_extreme:
        return "gradient explosion"
    return "unstable" if kl_is_extreme else "stable"
