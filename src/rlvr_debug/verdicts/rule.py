"""What results show of effects: on arrays, of one study, thousands of simulated ones or one at many sizes; and one row per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.causes.unnamed import is_unnamed
from rlvr_debug.verdicts.statistics import (
    Floats,
    Sample,
    below_p,
    difference,
    equivalence_p,
    first_of,
    holm,
    mean_of,
    moves,
    priors,
    sample,
    squeezed,
    standard_error,
    welch_p,
)

STATUSES = (
    *("pending", "validated", "located_not_explained", "partially_validated", "inconclusive"),
    *("explained_costs_nothing", "invalidated", "not_applicable"),
)
FIRST = 2  # seeds at the first look: of fewer no spread is known
# of a mechanism, which is present, absent, or None where that is not known
PRESENT, UNTESTED, ABSENT = 1, 0, -1
MECHANISMS = {True: PRESENT, None: UNTESTED, False: ABSENT}
# of the case's failure: the control does better by at least the minimum effect, or surely by less
SHOWN, OPEN, REFUTED = 1, 0, -1

_WORDS = {
    "located_not_explained": "located, not explained",
    "explained_costs_nothing": "explained, costs nothing",
}

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Bar:
    """What an effect is held to: error rates of finding and of clearing one, the smallest that matters, and each look's share of alpha."""

    alpha: float
    minimum: float
    clearing: float
    spending: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, alpha: float, minimum: float) -> Bar:
        """Return the bar of a study that is looked at once."""
        return cls(alpha, minimum, alpha)

    def share(self, seeds: ArrayLike) -> Floats:
        """Return the share of alpha that the look at so many seeds spends; beyond the last look, its."""
        look = np.clip(np.asarray(seeds) - FIRST, 0, len(self.spending) - 1)
        return np.asarray(np.array(self.spending)[look])


@dataclass(frozen=True)
class Measured:
    """Gains in held-out reward, [0, 1], of an arm: at the training temperature, and greedy."""

    sampled: Sample
    greedy: Sample

    @classmethod
    def of_first(cls, gains: Floats, seeds: NDArray[np.int64]) -> Measured:
        """Return what each arm's first seeds say. gains: (..., arms, seeds, 2), sampled and greedy; seeds: (..., arms)."""
        return cls(*(first_of(gains[..., n], seeds) for n in range(2)))

    def of(self, arms: Any) -> Measured:
        """Select arms by an index of the last axis."""
        return Measured(self.sampled.of(arms), self.greedy.of(arms))

    def moderated(self, bar: Bar, counted: ArrayLike = True, seeds: Any = None) -> Measured:
        """Return them with spreads that borrow from the other arms. counted: whether an arm's runs are not another's; seeds: had the arms so many."""
        moving = moves(self.sampled.mean, bar.minimum) & (self.sampled.seeds > 0)

        def drawn(found: Sample) -> Sample:
            count = found.seeds if seeds is None else seeds
            later = Sample(found.mean, *np.broadcast_arrays(found.sd, count))
            return squeezed(later, priors(later, moving, counted))

        return Measured(drawn(self.sampled), drawn(self.greedy))


@dataclass(frozen=True)
class Effects:
    """What is shown of each arm's effect. All arrays: (..., arms).

    error: its standard error. in_sd is the effect in the two sides' pooled standard deviations over seeds; NaN without spread.
    p_holm: corrected for the arms and, where there are several looks, for these.
    settings_differ: from those of what the arm is compared with; results_differ: its runs too.
    known: there is more than one seed. significant: surely above 0. gained: significant, and at least
    the minimum effect. large: so, unless greedy loses that much. equivalent: surely within the minimum effect
    of 0, and greedy is within it. bounded: surely below the minimum effect, and greedy is below it.
    """

    effect: Floats
    effect_greedy: Floats
    error: Floats
    in_sd: Floats
    p: Floats
    p_holm: Floats
    p_equivalence: Floats
    p_bound: Floats
    settings_differ: Bools
    results_differ: Bools
    known: Bools
    significant: Bools
    gained: Bools
    large: Bools
    equivalent: Bools
    bounded: Bools

    def of(self, members: Any) -> Effects:
        """Select arms by an index of the last axis."""
        return Effects(*(getattr(self, field.name)[..., members] for field in fields(self)))


def compare(
    better: Measured,
    worse: Measured,
    bar: Bar,
    tests: ArrayLike = True,
    settings_differ: ArrayLike | None = None,
) -> Effects:
    """Return the effects of all arms that are corrected together, on the last axis; `tests`: whether the two sides are different runs."""
    a, b, minimum = better.sampled, worse.sampled, bar.minimum
    effect, greedy, p = np.broadcast_arrays(
        a.mean - b.mean, better.greedy.mean - worse.greedy.mean, welch_p(a, b)
    )
    tested = np.broadcast_to(np.asarray(tests), effect.shape)
    effect, greedy = np.where(tested, effect, 0.0), np.where(tested, greedy, 0.0)
    spread = np.sqrt((a.sd**2 + b.sd**2) / 2)
    known = np.broadcast_to(np.isfinite(spread), effect.shape)
    same = ~tested & known
    # of the side with fewer seeds, which is the arm's own where many arms share the other
    spent = bar.share(np.minimum(a.seeds, b.seeds))
    p_holm = holm(np.where(tested, p / spent, np.nan))
    p_equivalence = np.where(same, 0.0, equivalence_p(a, b, minimum))
    p_bound = np.where(same, 0.0, below_p(a, b, minimum))
    significant = (p_holm < bar.alpha) & (effect > 0)
    gained = significant & (effect >= minimum)
    return Effects(
        effect=effect,
        effect_greedy=greedy,
        error=np.broadcast_to(standard_error(a, b)[0], effect.shape),
        in_sd=effect / np.where(spread > 0, spread, np.nan),
        p=p,
        p_holm=p_holm,
        p_equivalence=p_equivalence,
        p_bound=p_bound,
        settings_differ=tested
        if settings_differ is None
        else np.broadcast_to(np.asarray(settings_differ), effect.shape),
        results_differ=tested,
        known=known,
        significant=significant,
        gained=gained,
        large=gained & (greedy > -minimum),
        equivalent=(p_equivalence < bar.clearing) & (np.abs(greedy) < minimum),
        bounded=(p_bound < bar.clearing) & (greedy < minimum),
    )


def failure(mended: Effects) -> NDArray[np.int64]:
    """Return whether the case fails: SHOWN, OPEN or REFUTED. mended: effects of the control, (..., 1)."""
    shown, refuted = mended.large[..., 0], mended.bounded[..., 0]
    return np.select([shown, refuted], [SHOWN, REFUTED], OPEN)


def unfailing(control: Mapping[Any, Any], bar: Bar) -> bool:
    """Return whether the case surely does as well as the control. control: its row of arms.csv."""
    return bool(control["p_bound"] < bar.clearing and control["effect_greedy"] < bar.minimum)


def status(fails: ArrayLike, effects: Effects, mechanism: ArrayLike) -> NDArray[np.str_]:
    """Return a hypothesis' status, by the lattice of evidence (docs/verdicts.md), from the effects of its arms."""
    shown, refuted = np.equal(fails, SHOWN), np.equal(fails, REFUTED)
    present, absent = np.equal(mechanism, PRESENT), np.equal(mechanism, ABSENT)
    known, null = effects.known.all(-1), effects.equivalent.all(-1)
    # whatever the check found, nothing about the case is other than it should be: a symptom of something else
    idle = known & ~effects.settings_differ.any(-1)
    large = shown & effects.large.any(-1)
    return np.select(
        [
            idle,
            refuted & present & known,
            large & present,
            large,
            null & present,
            null | (absent & effects.bounded.all(-1)),
            shown & present & effects.significant.any(-1) & ~effects.gained.any(-1),
        ],
        [
            *("invalidated", "explained_costs_nothing", "validated", "located_not_explained"),
            *("explained_costs_nothing", "invalidated", "partially_validated"),
        ],
        "inconclusive",
    )


def arm_status(effects: Effects) -> NDArray[np.str_]:
    """What each arm's effect says by itself, whatever the mechanism and whether or not the case fails."""
    return np.select(
        [effects.large, effects.equivalent, effects.significant],
        ["validated", "invalidated", "partially_validated"],
        "inconclusive",
    )


def in_words(name: str) -> str:
    """Return a status as a reader sees it."""
    return _WORDS.get(name, name.replace("_", " "))


def in_answer(verdict: Mapping[Any, Any]) -> bool:
    """Return a key by which verdicts are sorted: what no hypothesis names comes first where an effect locates it."""
    located = verdict["status"] == "located_not_explained"
    return not (located and is_unnamed(str(verdict["hypothesis"])))


def learns(arm: Mapping[Any, Any], minimum_effect: float) -> bool | None:
    """Return whether the arm, a row of arms.csv, gains at least the minimum over its baseline; None where that is unclear."""
    if arm["gain_low"] > 0 and arm["gain"] >= minimum_effect:
        return True
    return False if arm["gain_high"] < minimum_effect else None


# --- one row per arm: what it gains over the untrained model, and its effect with all that is tested about it


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
