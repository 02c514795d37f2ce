"""Interim analyses: which runs a study may have, and which of them the looks at its results choose.

Each look is at the runs that the one before it chose; before the first there are those that every study begins with.
With the sequential design a look gives arms more seeds (verdicts/sequential.py); with either, where phases are gated,
it opens the arms of the next phase unless it finds a cause. Localisers and controls are not tested sequentially: they
run at once, or with the phase of their hypothesis.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_json, write_json
from rlvr_debug.trainers.base import Run
from rlvr_debug.verdicts.arms import distinct, measured
from rlvr_debug.verdicts.rule import ABSENT, MECHANISMS, PRESENT, Bar, Measured
from rlvr_debug.verdicts.sequential import LARGEST, MOST, Layout, next_seeds, run_out

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


# --- how many trainings to expect


_STUDIES = 40  # for each hypothesis that may be the cause
# as arms of the default study have them: what learning gains, and spreads over seeds of arms that learn and of others
_GAIN, _LEARNING, _STILL = 0.25, 0.05, 0.015


def expected_trainings(looked: Looked) -> int:
    """Return the mean over studies in which one hypothesis is the cause, each in turn, and the check sees it; all phases are run."""
    names, owners, layout = looked.layout(looked.highest_phase, NOTHING)
    if not owners:
        return looked.trainings(replace(looked, gated=False).first().seeds)
    cause = np.repeat(np.arange(len(owners)), _STUDIES)[:, None]
    own = layout.owner == cause
    # what is mended learns, and so does a control with a part that does no harm
    learns = np.where(layout.alone, ~own, own)
    whole = np.broadcast_to(
        [False, True], (len(cause), 2)
    )  # the case does not, and the control does
    learns = np.concatenate([whole, learns], -1)
    present = np.where(np.arange(len(owners)) == cause, PRESENT, ABSENT)
    noise = np.random.default_rng(0).standard_normal((*learns.shape, LARGEST))
    gains = (
        np.where(learns, _GAIN, 0.0)[..., None]
        + noise * np.where(learns, _LEARNING, _STILL)[..., None]
    )
    # greedy as sampled
    has = run_out(layout, np.stack([gains, gains], -1), present, looked.bar)
    every = ("case", "control", *names)
    targets = (dict(zip(every, map(int, counts), strict=True)) for counts in has)
    return round(
        fmean(looked.trainings(looked.counts(looked.highest_phase, counts)) for counts in targets)
    )
