"""The rule of decide.py on arrays: one study, thousands of simulated ones, or one at many sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlvr_debug.causes.unnamed import is_unnamed
from rlvr_debug.verdicts.statistics import (
    Floats,
    Sample,
    below_p,
    equivalence_p,
    first_of,
    holm,
    moves,
    priors,
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
