"""Interim analyses: which runs a study may have, and which of them the looks at its results choose.

Each look is at the runs that the one before it chose; before the first there are those that every study begins with,
without arms that would be the case or the control to the byte. With the sequential design a look gives arms more seeds;
with either, where phases are gated, it opens the arms of the next phase unless it finds a cause. Localisers and controls
are not tested sequentially: they run at once, or with the phase of their hypothesis.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.causes.unnamed import BLOCKS
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.trainers import SHADOW, Run
from rlvr_debug.verdicts.rule import (
    ABSENT,
    FIRST,
    MECHANISMS,
    OPEN,
    REFUTED,
    Bar,
    Bools,
    Effects,
    Measured,
    compare,
    distinct,
    failure,
    measured,
)
from rlvr_debug.verdicts.statistics import Floats

CASE, CONTROL, ARMS = 0, 1, 2  # places on the last axis: the arms begin at the third
MOST, LARGEST = 6, 8  # seeds at the last look: of an arm, and of the case and the control
# of alpha, by look: each spends twice as much as the one before, all half of it, as simulated studies then hold their bounds
_SPENDING = tuple(2**look / 62 for look in range(MOST - FIRST + 1))
_FUTILE_FROM = 3  # seeds: after two, means and spreads are too little known to give up
_TIMES = 1.5  # as many seeds of the case and the control as of an arm, at most
Ints = NDArray[np.int64]
# runs of an arm that no look is about: enough for a spread, which borrows from the others' of its environment
_ASIDE = 2
_SHARED = ("case", "control")
_FIGURES = ("environment", "seeds", "gain", "gain_sd", "gain_greedy", "gain_greedy_sd", "tested")
NOTHING = pd.DataFrame(columns=list(_FIGURES))


def most_seeds(arm: Run, main: str) -> range:
    """Return all seeds that an arm may have; main: the environment of the case."""
    if arm.environment == main and arm.design in _SHARED:
        return range(LARGEST)
    return range(MOST if _is_looked_at(arm, main) else _ASIDE)


def _is_looked_at(arm: Run, main: str) -> bool:
    return (
        arm.environment == main
        and arm.design in ("repair", "alone")
        and load_hypothesis(arm.hypothesis).kind == "cause"
    )


@dataclass(frozen=True)
class Look:
    """What follows from a look: the last phase that is open, by arm how many runs it is to have, and whether some are still to run."""

    number: int
    phase: int
    seeds: Mapping[str, int]
    more: bool
    causes: tuple[str, ...] = ()


def look_file(results: Path, number: int) -> Path:
    return results / "tables" / f"look_{number}.json"


def write_look(look: Look, path: Path) -> None:
    """Write what follows from a look. The same gives the same bytes."""
    write_json(path, asdict(look))


def read_look(path: Path) -> Look:
    """Read what write_look wrote. Raise InputError for any other file."""
    value = read_json(path)
    try:
        return Look(**{**value, "causes": tuple(value["causes"])})
    except (TypeError, KeyError):
        raise InputError(f"{path}: not a look that the workflow wrote: it has other keys") from None


def last_look(results: Path, arms: Iterable[str]) -> Look | None:
    """Return the last look of which the file is there, None where there is none, or where it is one at other arms."""
    look, number = None, 1
    while (look is None or look.more) and look_file(results, number).is_file():
        look, number = read_look(look_file(results, number)), number + 1
    return look if look and set(look.seeds) == set(arms) else None


def looks_after(last: Look, results: Path) -> list[Path]:
    """Return the files of looks after the last one, which are of an earlier study."""
    later = (look_file(results, number) for number in count(last.number + 1))
    return list(takewhile(Path.is_file, later))


# --- who runs next: a pure function of what has run

# Everything that is still open gets another seed, as docs/verdicts.md says under Looks. What is large, equivalent or
# bounded follows from all seeds that there are, as decide.py has it with the bar of looked: nothing is remembered of
# earlier looks, so that the tables hold all that a verdict follows from.


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


# --- what whole runs of the case and the control say of stages, which they compute as the other one has them too

# An arm that differs in stages alone, and in no step, would be those runs to the byte: it is not trained. And what the
# check sees of a stage in three steps is known of all steps where the case's runs compared it (grpo/shadow.py).


@dataclass(frozen=True)
class Comparing:
    """The job of a comparison. pairs: as `compared` returns them; runs: of the case and the control."""

    pairs: Mapping[str, tuple[Run, Run]]
    runs: Sequence[Run]


def compared(runs: Sequence[Run]) -> dict[str, tuple[Run, Run]]:
    """Return by arm that may change nothing: its first run, and that of the case or, of one alone, of the control."""
    first = {run.arm: run for run in reversed(runs)}
    if not {"case", "control"} <= first.keys():
        return {}
    return {
        name: (run, other)
        for name, run in first.items()
        for other in [first["control" if run.design == "alone" else "case"]]
        # of the case and the control the runs are there anyway
        if run.design in ("alone", "repair")
        and run.trained_as not in {first[arm].trained_as for arm in ("case", "control")}
        and {*run.faults} <= {*first["case"].faults}
        and all(getattr(run, key) == getattr(other, key) for key in ("environment", *BLOCKS))
    }


def unchanged(comparing: Comparing, results: Path) -> list[dict[str, Any]]:
    """Return the arms that are to the byte those of the case and the control in these runs, each with its hypothesis."""
    rows = []
    for name, (run, other) in sorted(comparing.pairs.items()):
        others = [one for one in comparing.runs if one.arm == other.arm]
        swapped = {*run.faults} ^ {*other.faults}
        if others and all(_same_in(results / "runs" / one.name, swapped) for one in others):
            steps = other.training.steps
            arm = {"arm": name, "hypothesis": run.hypothesis, "as": other.arm}
            rows.append({**arm, "steps": steps, "runs": len(others)})
    return rows


def _same_in(folder: Path, faults: set[str]) -> bool:
    """Return whether these faults, planted or mended, came to something else in no step of a run."""
    path = folder / SHADOW
    if not path.is_file():
        return False
    parted = read_json(path)["parted"]
    return all(fault in parted and parted[fault] is None for fault in faults)


def whole_run(runs: Sequence[Run], results: Path) -> set[str]:
    """Return the hypotheses of which no stage that an arm swaps came to something else in any step of the case's runs."""
    first = {run.arm: run for run in reversed(runs)}
    swapped: dict[str, set[str]] = {}
    for run in first.values():
        other = first["control" if run.design == "alone" else "case"]
        swapped.setdefault(run.hypothesis, set()).update({*run.faults} ^ {*other.faults})
    case = [results / "runs" / run.name for run in runs if run.arm == "case"]
    return {slug for slug, faults in swapped.items() if all(_same_in(one, faults) for one in case)}


# --- a study as its looks see it


@dataclass(frozen=True)
class Looked:
    """A study as its looks see it: all runs that it may have, and whether looks choose seeds and open phases."""

    runs: Sequence[Run]
    phases: Mapping[str, int]
    main: str
    bar: Bar
    sequential: bool = True
    gated: bool = False
    unchanged: frozenset[str] = frozenset()

    @cached_property
    def arms(self) -> dict[str, Run]:
        """Of each arm its first run."""
        first: dict[str, Run] = {}
        for run in self.runs:
            first.setdefault(run.arm, run)
        return first

    @property
    def highest_phase(self) -> int:
        return max(self.phases.values(), default=0)

    def first(self) -> Look:
        """Return what every study begins with."""
        phase = min(self.phases.values(), default=0) if self.gated else self.highest_phase
        more = self.sequential or phase < self.highest_phase
        return Look(0, phase, self._asked(phase, NOTHING, {}), more)

    def next(
        self,
        before: Look,
        arms: pd.DataFrame,
        mechanisms: Mapping[str, bool | None],
        causes: Sequence[str],
    ) -> Look:
        """Return what follows from a look at the runs that `before` chose, by the rows of arms that have runs."""
        rows, number, validated = arms.set_index("arm"), before.number + 1, tuple(causes)
        for phase in range(before.phase, self.highest_phase + 1):
            asked = self._asked(phase, rows, mechanisms)
            seeds = {arm: max(more, before.seeds[arm]) for arm, more in asked.items()}
            if seeds != before.seeds:
                return Look(number, phase, seeds, True, validated)
            if validated:
                break
        return Look(number, phase, seeds, False, validated)

    def layout(self, phase: int, rows: pd.DataFrame) -> tuple[list[str], list[str], Layout]:
        """Return the arms up to that phase that looks are about, the slugs of their hypotheses, and both as next_seeds has them."""
        names = [arm for arm in self._open(phase) if self._is_about(arm, rows)]
        owners = sorted({self.arms[arm].hypothesis for arm in names})
        alone = [self.arms[arm].design == "alone" for arm in names]
        owner = [owners.index(self.arms[arm].hypothesis) for arm in names]
        return names, owners, Layout(np.array(alone, dtype=bool), np.array(owner, dtype=int))

    def seen(self, phase: int, rows: pd.DataFrame) -> tuple[list[str], list[str], Layout, Measured]:
        """Return what `layout` does, and the results; arms that no look is about come last, as their spreads count."""
        names, owners, layout = self.layout(phase, rows)
        around = rows[rows["environment"] == self.main]
        about = [*_SHARED, *names]
        every = [*about, *around.index.difference(about, sort=False)]
        counted = pd.Series(distinct(around), around.index).reindex(every, fill_value=True)
        shown = replace(layout, counted=counted.to_numpy(bool))
        return names, owners, shown, measured(rows.reindex(every))

    def trainings(self, seeds: Mapping[str, int]) -> int:
        """Return how many are trained where arms have so many runs."""
        return sum(seeds[arm] for arm, run in self.arms.items() if arm == run.trained_as)

    def _asked(
        self, phase: int, rows: pd.DataFrame, mechanisms: Mapping[str, bool | None]
    ) -> dict[str, int]:
        """By arm of the study, how many runs it is to have."""
        if self.sequential:
            names, owners, layout, results = self.seen(phase, rows)
            present = np.array([MECHANISMS[mechanisms.get(slug)] for slug in owners], dtype=int)
            counts = map(int, next_seeds(layout, results, present, self.bar))
            return self.counts(phase, dict(zip([*_SHARED, *names], counts, strict=True)))
        opened = set(self._open(phase)) - self.unchanged
        every = Counter(run.arm for run in self.runs)
        return {arm: count if arm in opened else 0 for arm, count in every.items()}

    def _open(self, phase: int) -> list[str]:
        return [
            arm for arm, run in self.arms.items() if self.phases.get(run.hypothesis, 0) <= phase
        ]

    def _is_about(self, arm: str, rows: pd.DataFrame) -> bool:
        """Whether looks are about that arm. Of runs that are those of the other side, more say nothing."""
        run = self.arms[arm]
        if arm in self.unchanged:
            return False
        other = self.arms["control" if run.design == "alone" else "case"]
        if not _is_looked_at(run, self.main) or run.trained_as == other.trained_as:
            return False
        return arm not in rows.index or bool(rows.at[arm, "tested"])

    def counts(self, phase: int, targets: Mapping[str, int]) -> dict[str, int]:
        """By arm of the study, how many runs it is to have: as many as any arm with equal settings."""
        most: dict[str, int] = {}
        for arm in self._open(phase):
            run = self.arms[arm]
            aside = 0 if _is_looked_at(run, self.main) else _ASIDE
            own = min(targets.get(arm, aside), len(most_seeds(run, self.main)))
            most[run.trained_as] = max(most.get(run.trained_as, 0), own)
        return {arm: most.get(run.trained_as, 0) for arm, run in self.arms.items()}
