"""Who runs next, in a study that is looked at several times: a pure function of what has run.

The case and the control run, and each part that the case departs in alone in the control; of a hypothesis that
has no such arm, what mends it in the case. Where the alone arms of a hypothesis say nothing, its repairs run. At
each look everything that is still open gets another seed; an arm stops

- for efficacy: its effect is large, which locates its hypothesis;
- for equivalence: its effect is equivalent to 0, or bounded where the mechanism is absent;
- for futility: had it all the seeds that it may have, and effects and spreads stayed, it would be as open as now.

The case and the control have as many seeds as the arms that they are compared with, and go on by themselves until the
case is shown to fail. Once it is shown not to, everything stops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlvr_debug.verdicts.moderation import moves, priors, squeezed
from rlvr_debug.verdicts.rule import (
    ABSENT,
    OPEN,
    REFUTED,
    Bar,
    Bools,
    Effects,
    Measured,
    compare,
    failure,
)
from rlvr_debug.verdicts.statistics import Sample

__all__ = ["FIRST", "MOST", "Layout", "effects_of_all", "next_seeds"]

CASE, CONTROL, ARMS = 0, 1, 2  # places on the last axis: the arms begin at the third
FIRST, MOST = 2, 6  # seeds at the first look, and at the last
_FUTILE_FROM = 4  # seeds, before which means and spreads are too little known to give up
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The intervention arms of causes: which are alone, and the number of each one's hypothesis. Both (arms,)."""

    alone: Bools
    owner: Ints

    @property
    def hypotheses(self) -> int:
        return int(self.owner.max(initial=-1)) + 1

    def any_of(self, shown: Bools) -> Bools:
        """By hypothesis, whether that is so of any of its arms. shown: (..., arms)."""
        own = self.owner == np.arange(self.hypotheses)[:, None]
        return np.asarray((shown[..., None, :] & own).any(-1))


def _of_look(bar: Bar, seeds: Ints) -> Bar:
    """Return the bar of arms of so many seeds: of the error of finding, later looks spend more, and all of them bar.alpha."""
    looks = np.arange(FIRST, MOST + 1)
    share = np.clip(seeds, FIRST, MOST) - FIRST + 1
    return replace(bar, alpha=bar.alpha * share / (looks - FIRST + 1).sum())


def effects_of_all(
    layout: Layout, results: Measured, bar: Bar, seeds: int | None = None, looks: bool = True
) -> tuple[Ints, Effects]:
    """Return whether the case fails, and the effects of all arms. results: (..., 2 + arms).

    The case is first, the control second. An arm of no seeds is not counted. seeds: had all that ran so many.
    """
    ran = results.sampled.seeds > 0
    moving = moves(results.sampled.mean, bar.minimum) & ran

    def drawn(found: Sample) -> Sample:
        if seeds is not None:
            found = Sample(found.mean, found.sd, np.where(ran, seeds, 0))
        return squeezed(found, priors(found, moving))

    sides = Measured(drawn(results.sampled), drawn(results.greedy))
    place = ARMS + np.arange(len(layout.alone))
    better = np.where(layout.alone, CONTROL, place)
    worse = np.where(layout.alone, place, CASE)
    has = sides.sampled.seeds
    spent, whole = (
        (_of_look(bar, has[..., ARMS:]), _of_look(bar, has[..., [CASE]])) if looks else (bar, bar)
    )
    effects = compare(*(_at(sides, each) for each in (better, worse)), spent, ran[..., ARMS:])
    mended = compare(*(_at(sides, np.array([each])) for each in (CONTROL, CASE)), whole)
    return failure(mended), effects


def _at(found: Measured, places: Ints) -> Measured:
    return Measured(*(_arm(each, places) for each in (found.sampled, found.greedy)))


def _arm(found: Sample, places: Ints) -> Sample:
    return Sample(
        *(each[..., places] for each in (found.mean, found.sd, found.seeds, found.degrees))
    )


def next_seeds(layout: Layout, results: Measured, mechanism: Ints, bar: Bar) -> Ints:
    """Return how many seeds each arm is to have, (..., 2 + arms): as many as it has where nothing more is to run.

    results: of the case, the control and all arms; mechanism: by hypothesis, (..., hypotheses).
    """
    has = results.sampled.seeds
    has_alone = _has_alone(layout)
    if not has.any():
        target = np.where(has_alone & ~layout.alone, 0, FIRST) + 0 * has[..., ARMS:]
        return np.concatenate([_shared(layout, has, target, target > 0), target], -1)
    fails, effects = effects_of_all(layout, results, bar)
    absent = (mechanism == ABSENT)[..., layout.owner]
    _, later = effects_of_all(layout, results, bar, MOST)
    own = has[..., ARMS:]
    closed = _closed(effects, absent)
    out_of_reach = effects.effect + effects.error < bar.minimum
    futile = (own >= _FUTILE_FROM) & ~_closed(later, absent) & out_of_reach
    open_ = ~closed & ~futile & (own < MOST)
    located = layout.any_of(effects.large)[..., layout.owner]
    # repairs wait until no alone arm of theirs has anything more to say
    waits = layout.any_of(layout.alone & open_)[..., layout.owner] & has_alone & ~layout.alone
    wanted = (fails != REFUTED)[..., None] & open_ & ~located & ~waits
    target = np.where(wanted, np.maximum(own + 1, FIRST), own)
    unsure = (fails == OPEN)[..., None] & (has[..., :ARMS] < MOST)
    shared = np.maximum(_shared(layout, has, target, wanted), has[..., :ARMS] + unsure)
    return np.concatenate([shared, target], -1)


def _shared(layout: Layout, has: Ints, target: Ints, wanted: Bools) -> Ints:
    """Seeds of the case and of the control, which several arms are compared with: for the same error of each, as many
    times the arms' as the root of their number, and no more than twice."""
    found = []
    for place, alone in ((CASE, False), (CONTROL, True)):
        those = wanted & (layout.alone == alone)
        most = np.where(those, target, 0).max(-1, initial=0)
        times = np.clip(np.sqrt(those.sum(-1)), 1, np.where(most > FIRST, 2, 1.5))
        least = np.maximum(np.ceil(most * times).astype(int), FIRST)
        least = np.where(most == MOST, np.maximum(least, MOST + 2), least)
        found.append(np.maximum(has[..., place], least))
    return np.stack(found, -1)


def _closed(effects: Effects, absent: Bools) -> Bools:
    """Which arms can no longer be what blames their hypothesis."""
    return np.asarray(effects.equivalent | (absent & effects.bounded))


def _has_alone(layout: Layout) -> Bools:
    """Of each arm, whether its hypothesis has one alone."""
    return np.asarray(layout.any_of(layout.alone)[layout.owner])

