"""Who runs next, in a study that is looked at several times: a pure function of what has run.

Everything that is still open gets another seed, as docs/verdicts.md says under Looks. What is large, equivalent or
bounded follows from all seeds that there are, as decide.py has it with the bar of looked: nothing is remembered of
earlier looks, so that the tables hold all that a verdict follows from.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlvr_debug.verdicts.rule import (
    ABSENT,
    FIRST,
    OPEN,
    REFUTED,
    Bar,
    Bools,
    Effects,
    Measured,
    compare,
    failure,
)
from rlvr_debug.verdicts.statistics import Floats

CASE, CONTROL, ARMS = 0, 1, 2  # places on the last axis: the arms begin at the third
MOST, LARGEST = 6, 8  # seeds at the last look: of an arm, and of the case and the control
# of alpha, by look: each spends twice as much as the one before, all half of it, as simulated studies then hold their bounds
_SPENDING = tuple(2**look / 62 for look in range(MOST - FIRST + 1))
_FUTILE_FROM = 3  # seeds: after two, means and spreads are too little known to give up
_TIMES = 1.5  # as many seeds of the case and the control as of an arm, at most
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The arms of causes: which are alone, and the number of each one's hypothesis; counted: whether their runs are not another's."""

    alone: Bools
    owner: Ints
    counted: ArrayLike = True

    @property
    def places(self) -> Ints:
        """Those of the arms in results."""
        return ARMS + np.arange(len(self.alone))

    @property
    def hypotheses(self) -> int:
        return int(self.owner.max(initial=-1)) + 1

    def any_of(self, shown: Bools) -> Bools:
        """Return by hypothesis whether that is so of any of its arms. shown: (..., arms)."""
        own = self.owner == np.arange(self.hypotheses)[:, None]
        return np.asarray((shown[..., None, :] & own).any(-1))


def looked(bar: Bar) -> Bar:
    """Return the bar of a study whose runs next_seeds chose: its looks spend the error of finding between them."""
    return replace(bar, spending=_SPENDING)


def effects_of_all(
    layout: Layout, results: Measured, bar: Bar, seeds: int = 0
) -> tuple[Ints, Effects]:
    """Return whether the case fails, and the effects of all arms; results: of case, control, arms, and others for the prior."""
    has = results.sampled.seeds
    count = np.where(has > 0, np.maximum(seeds, has), 0)
    sides = results.moderated(bar, layout.counted, count)
    better = np.where(layout.alone, CONTROL, layout.places)
    worse = np.where(layout.alone, layout.places, CASE)
    effects = compare(sides.of(better), sides.of(worse), bar, has[..., layout.places] > 0)
    mended = compare(sides.of([CONTROL]), sides.of([CASE]), bar)
    return failure(mended), effects


def next_seeds(layout: Layout, results: Measured, mechanism: Ints, bar: Bar) -> Ints:
    """Return how many seeds case, control and each arm are to have, as many as they have where nothing more is to run."""
    has = results.sampled.seeds
    own, shared = has[..., layout.places], has[..., :ARMS]
    fails, effects = effects_of_all(layout, results, looked(bar))
    wanted = _wanted(layout, results, mechanism, looked(bar), effects)
    wanted &= (fails != REFUTED)[..., None]
    target = np.where(wanted, np.maximum(own + 1, FIRST), own)
    unsure = (fails == OPEN)[..., None] & (shared < MOST)
    least = np.where(unsure, np.maximum(shared + 1, FIRST), shared)
    spreads = results.moderated(bar, layout.counted).sampled.sd
    return np.concatenate([np.maximum(least, _shared(layout, target, wanted, spreads)), target], -1)


def _wanted(
    layout: Layout, results: Measured, mechanism: Ints, bar: Bar, effects: Effects
) -> Bools:
    """Return which arms get another seed while the case may fail."""
    own = results.sampled.seeds[..., layout.places]
    absent = (mechanism == ABSENT)[..., layout.owner]
    _, later = effects_of_all(layout, results, bar, MOST)
    out_of_reach = effects.effect + effects.error < bar.minimum
    futile = (own >= _FUTILE_FROM) & ~_closed(later, absent) & out_of_reach
    open_ = ~_closed(effects, absent) & ~futile & (own < MOST)
    located = layout.any_of(effects.large)[..., layout.owner]
    # repairs wait until no alone arm of theirs has anything more to say
    talking = layout.any_of(layout.alone & open_)[..., layout.owner]
    # where an arm alone fails as the case does, there is nothing left that only repairs would show
    sides = results.moderated(bar, layout.counted)
    as_case = compare(sides.of(layout.places), sides.of([CASE]), bar)
    reproduced = np.any(layout.alone & effects.large & as_case.equivalent, axis=-1)
    waits = talking | reproduced[..., None]
    has_alone = layout.any_of(layout.alone)[layout.owner]
    return np.asarray(open_ & ~located & (layout.alone | ~has_alone | ~waits))


def _shared(layout: Layout, target: Ints, wanted: Bools, spreads: Floats) -> Ints:
    """Return the seeds of the case and of the control that make errors smallest for the runs: from once to 1.5 times the arms'."""
    seeds = []
    for place, alone in ((CASE, False), (CONTROL, True)):
        those = wanted & (layout.alone == alone)
        most = np.where(those, target, 0).max(-1, initial=0)
        with np.errstate(all="ignore"):
            ratio = (spreads[..., [place]] / spreads[..., layout.places]) ** 2
            optimum = np.sqrt(np.where(those, np.where(np.isfinite(ratio), ratio, 1), 0).sum(-1))
        times = np.clip(optimum, 1, _TIMES)
        seeds.append(np.minimum(np.ceil(most * times).astype(int), LARGEST))
    return np.stack(seeds, -1)


def _closed(effects: Effects, absent: Bools) -> Bools:
    """Return which arms can no longer be what blames their hypothesis."""
    return np.asarray(effects.equivalent | (absent & effects.bounded))


def run_out(layout: Layout, gains: Floats, mechanism: Ints, bar: Bar) -> Ints:
    """Return the seeds of each arm, (studies, 2 + arms), when nothing more is to run, where runs gain that."""
    has = np.zeros(gains.shape[:2], dtype=int)
    going = np.arange(len(has))
    while going.size:
        results = Measured.of_first(gains[going], has[going])
        wanted = next_seeds(layout, results, mechanism[going], bar)
        more = (wanted > has[going]).any(-1)
        has[going] = wanted
        going = going[more]
    return has
