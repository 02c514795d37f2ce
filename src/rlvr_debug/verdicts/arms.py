"""One row per arm: what it gains over the untrained model, and its effect with all that is tested about it."""

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
    sample,
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
        gain = mean_of(measured(group).moderated(bar, distinct(group)).sampled, bar.clearing)
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


def measured(rows: pd.DataFrame) -> Measured:
    """Return the gains of these arms; one that has no runs has no spread either."""
    seeds = np.nan_to_num(rows["seeds"].to_numpy(float)).astype(int)
    return Measured(
        *(
            Sample(
                np.nan_to_num(rows[gain].to_numpy(float)), rows[f"{gain}_sd"].to_numpy(float), seeds
            )
            for gain in _GAINS
        )
    )


def distinct(arms: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which of one environment's arms count for a prior: of those that share their runs the first."""
    figures = [name for gain in _GAINS for name in (gain, f"{gain}_sd")]
    return ~arms.duplicated(figures).to_numpy()


def _tests(arms: pd.DataFrame, family: Sequence[str], bar: Bar) -> list[dict[str, Any]]:
    """A row per arm of a family that is corrected together."""
    better, worse = _sides(arms, family, bar)
    effects, later = effects_of(arms, family, bar)
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
    own = arms.set_index("arm").loc[list(family)]
    # whether its results differ from those that it is compared with, and whether its settings do
    tests = own["tested"].to_numpy(bool), (own["changes"] != "").to_numpy()
    sides = (_sides(arms, family, bar), _sides(arms, family, bar, _TOTALS[:, None]))
    now, later = (compare(*each, bar, *tests) for each in sides)
    return now, later


def _sides(
    arms: pd.DataFrame, family: Sequence[str], bar: Bar, seeds: NDArray[np.int64] | None = None
) -> tuple[Measured, Measured]:
    """Return the better and the worse side of each arm, as a cause makes them, with moderated spreads. seeds: (totals, 1), had the arms those."""
    main = arms.loc[arms["arm"].isin(family), "environment"].unique()
    around = arms[arms["environment"].isin(main)].reset_index(drop=True)
    drawn = measured(around).moderated(bar, distinct(around), seeds)
    place = {arm: n for n, arm in enumerate(around["arm"])}
    alone = around.set_index("arm").loc[list(family), "design"] == "alone"
    better = [place["control" if one else arm] for arm, one in zip(family, alone, strict=True)]
    worse = [place[arm if one else "case"] for arm, one in zip(family, alone, strict=True)]
    return drawn.of(better), drawn.of(worse)


def further_seeds(found: str, at_totals: NDArray[np.str_], seeds: int) -> float:
    """Return the seeds per arm until an inconclusive status settles, by the status at each total; inf where none does."""
    if found != "inconclusive" or seeds < 2:  # decided, or of unknown spread
        return nan
    enough = _TOTALS[(at_totals != "inconclusive") & (seeds < _TOTALS)]
    return float(enough[0] - seeds) if enough.size else inf
