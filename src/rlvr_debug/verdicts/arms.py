"""One row per arm: what it gains over the untrained model, and its effect with all that is tested about it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.verdicts.rule import Bar, Effects, Measured, arm_status, compare
from rlvr_debug.verdicts.statistics import (
    Sample,
    difference,
    mean_of,
    moves,
    priors,
    sample,
    squeezed,
)

_GAINS = ("gain", "gain_greedy")
_SAME = 1e-9  # in held-out reward: of runs that came out alike
MOST_SEEDS = 100
_TOTALS = np.arange(2, MOST_SEEDS + 1)  # seeds per arm that are tried


def arm_table(runs: pd.DataFrame, main: str, bar: Bar) -> pd.DataFrame:
    """Return one row per arm, from those of runs.csv: its gain over the baseline and, in the main environment, its effect."""
    by_arm = {str(arm): group for arm, group in runs.groupby("arm", sort=False)}
    arms = pd.DataFrame([_gains(group) for group in by_arm.values()])
    arms["tested"] = [_differs(row, by_arm) for row in arms.to_dict("records")]
    for _, group in arms.groupby("environment", sort=False):
        gain = mean_of(_moderated(group, "gain", bar), bar.clearing)
        arms.loc[group.index, ["gain_low", "gain_high"]] = np.stack([gain.low, gain.high], -1)
    causes = tested_causes(arms)
    compared = ~arms["design"].isin(["case", "random_reward"]) & (arms["environment"] == main)
    others = [[arm] for arm in arms.loc[compared, "arm"] if arm not in causes]
    rows = [row for family in (causes, *others) if family for row in _tests(arms, family, bar)]
    return arms.merge(pd.DataFrame(rows), on="arm", how="left") if rows else arms


def _gains(group: pd.DataFrame) -> dict[str, Any]:
    """group: the runs of one arm."""
    sampled, greedy = (sample(group[gain]) for gain in _GAINS)
    return {
        **{
            name: group[name].iloc[0]
            for name in ("arm", "design", "hypothesis", "environment", "changes")
        },
        "seeds": len(group),
        "gain": float(sampled.mean),
        "gain_sd": float(sampled.sd),
        "gain_greedy": float(greedy.mean),
        "gain_greedy_sd": float(greedy.sd),
    }


def _differs(arm: dict[Any, Any], runs: dict[str, pd.DataFrame]) -> bool:
    """Whether the arm has other settings than what it is compared with, and other results on some seed."""
    other = "control" if arm["design"] == "alone" else "case"
    if not arm["changes"] or other not in runs:
        return bool(arm["changes"])
    gains = [runs[name].set_index("seed")[list(_GAINS)] for name in (arm["arm"], other)]
    shared = gains[0].index.intersection(gains[1].index)
    own, others = (gain.loc[shared].to_numpy(float) for gain in gains)
    return shared.empty or bool((np.abs(own - others) > _SAME).any())


def _moderated(
    arms: pd.DataFrame, gain: str, bar: Bar, seeds: NDArray[np.int64] | None = None
) -> Sample:
    """One environment's arms. The sampled gain says which of them move. seeds: (totals, 1), had the arms those."""
    count = arms["seeds"].to_numpy() if seeds is None else seeds
    mean, sd = arms[gain].to_numpy(float), arms[f"{gain}_sd"].to_numpy(float)
    drawn = Sample(mean, *np.broadcast_arrays(sd, count))
    moving = moves(arms["gain"].to_numpy(float), bar.minimum)
    return squeezed(drawn, priors(drawn, moving, distinct(arms)))


def distinct(arms: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which of one environment's arms count for a prior: of those that share their runs the first."""
    figures = [name for gain in _GAINS for name in (gain, f"{gain}_sd")]
    return ~arms.duplicated(figures).to_numpy()


def _tests(arms: pd.DataFrame, family: Sequence[str], bar: Bar) -> list[dict[str, Any]]:
    """A row per arm of a family that is corrected together."""
    (better, worse), at_totals = _measured(arms, family, bar)
    tests = _tests_of(arms, family)
    effects, later = (compare(*sides, bar, *tests) for sides in ((better, worse), at_totals))
    now, then = arm_status(effects), arm_status(later)
    sampled, greedy = (
        difference(getattr(better, name), getattr(worse, name), bar.clearing)
        for name in ("sampled", "greedy")
    )
    columns = {
        "effect": effects.effect,
        "ci_low": sampled.low,
        "ci_high": sampled.high,
        "p": effects.p,
        "effect_greedy": effects.effect_greedy,
        "greedy_low": greedy.low,
        "greedy_high": greedy.high,
        "p_holm": effects.p_holm,
        "status": now,
        "p_equivalence": effects.p_equivalence,
        "p_bound": effects.p_bound,
        "effect_in_sd": effects.in_sd,
    }
    seeds = arms.set_index("arm").loc[list(family), "seeds"].to_numpy()
    return [
        {
            "arm": arm,
            **{name: values[n].item() for name, values in columns.items()},
            "further_seeds": further_seeds(str(now[n]), then[:, n], seeds[n]),
        }
        for n, arm in enumerate(family)
    ]


def tested_causes(arms: pd.DataFrame) -> list[str]:
    """Return the arms that are corrected together. Elsewhere than the case they have no effect to test."""
    main = arms.loc[arms["design"] == "case", "environment"]
    return [
        row["arm"]
        for row in arms.to_dict("records")
        if row["design"] in ("repair", "alone")
        and row["environment"] in set(main)
        and load_hypothesis(row["hypothesis"]).kind == "cause"
    ]


def effects_of(arms: pd.DataFrame, family: Sequence[str], bar: Bar) -> tuple[Effects, Effects]:
    """Return effects of these arms, corrected together: as measured, and had each arm 2, 3 and more seeds, (totals, arms)."""
    now, later = _measured(arms, family, bar)
    tests = _tests_of(arms, family)
    return compare(*now, bar, *tests), compare(*later, bar, *tests)


def _tests_of(
    arms: pd.DataFrame, family: Sequence[str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each arm, whether its results differ from those that it is compared with, and whether its settings do."""
    own = arms.set_index("arm").loc[list(family)]
    return own["tested"].to_numpy(bool), (own["changes"] != "").to_numpy()


def _measured(
    arms: pd.DataFrame, family: Sequence[str], bar: Bar
) -> tuple[tuple[Measured, Measured], tuple[Measured, Measured]]:
    """The better and the worse side of each arm, with moderated spreads: now, and at _TOTALS seeds."""
    main = arms.loc[arms["arm"].isin(family), "environment"].unique()
    around = arms[arms["environment"].isin(main)].reset_index(drop=True)
    sides = _sides(around, family)

    def at(seeds: NDArray[np.int64] | None) -> tuple[Measured, Measured]:
        drawn = [_moderated(around, gain, bar, seeds) for gain in _GAINS]
        better, worse = (Measured(*(each.of(side) for each in drawn)) for side in sides)
        return better, worse

    return at(None), at(_TOTALS[:, None])


def _sides(arms: pd.DataFrame, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of each arm's two sides: a cause makes the first one better."""
    place = {arm: n for n, arm in enumerate(arms["arm"])}
    alone = arms.set_index("arm").loc[list(names), "design"] == "alone"
    better = [place["control" if one else arm] for arm, one in zip(names, alone, strict=True)]
    worse = [place[arm if one else "case"] for arm, one in zip(names, alone, strict=True)]
    return np.array(better), np.array(worse)


def further_seeds(found: str, at_totals: NDArray[np.str_], seeds: int) -> float:
    """Return the seeds per arm until an inconclusive status settles, by the status at each total; inf where none does."""
    if found != "inconclusive" or seeds < 2:  # decided, or of unknown spread
        return nan
    enough = _TOTALS[(at_totals != "inconclusive") & (seeds < _TOTALS)]
    return float(enough[0] - seeds) if enough.size else inf
