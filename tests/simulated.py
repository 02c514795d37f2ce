"""Whole studies, simulated, run and judged by the real code: each arm has the seeds that looks choose, or a fixed design's."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rlvr_debug.verdicts.looks import (
    ARMS,
    LARGEST,
    Layout,
    effects_of_all,
    run_out,
)
from rlvr_debug.verdicts.rule import ABSENT, PRESENT, Bar, Measured, status
from rlvr_debug.verdicts.statistics import Floats

HEALTHY = 0.3  # what the control gains, or all that the case loses where that is more
LEARNS = 0.1  # a gain from which an arm spreads as one that learns
SPREADS = {
    True: (0.04, 0.06),
    False: (0.013, 0.02),
}  # measured, of arms that learn and of those that do not
FIXED = {"case": 3, "control": 5, "repair": 3, "alone": 5}  # seeds
SURER = 2  # more seeds, with which a fixed design finds a cause of 0.15 in nine of ten studies, as looks do

Ints = NDArray[np.int64]

# what the control loses with neither of two defects, with either, and with both; c is the effect
COSTS: dict[str, Callable[[float], tuple[float, float, float]]] = {
    "one cause": lambda c: (0, c, c),  # the second defect is none
    "two causes": lambda c: (0, c, 2 * c),
    "two, each enough": lambda c: (0, c, c),
    "two that compensate": lambda c: (0, c, 0),
    "two that hurt together": lambda c: (0, 0, c),
    "none, healthy": lambda c: (0, 0, 0),
    "none, fails": lambda c: (0, 0, 0),
}


@dataclass(frozen=True)
class World:
    """What is so in all the studies of a row.

    truth: of COSTS; effect: of each defect, in held-out reward; unknown: what the case loses for a reason that no
    hypothesis names. sees: whether the check finds the causes' mechanisms; blames: of how many others it finds them.
    """

    truth: str
    arms: int
    effect: float
    noise: str = "by learning"
    unknown: float = 0.0
    sees: bool = True
    blames: float = 0.5


@dataclass(frozen=True)
class Study:
    """Studies of one world, before any is run. gains: (studies, 2 + arms, seeds, 2), sampled and greedy; causes:
    which hypotheses are, and mechanism, (studies, hypotheses)."""

    layout: Layout
    gains: Floats
    causes: NDArray[np.bool_]
    mechanism: Ints

    def looked_at(self, bar: Bar) -> Ints:
        """Return the seeds of each arm when nothing more is to run, (studies, 2 + arms)."""
        return run_out(self.layout, self.gains, self.mechanism, bar)

    def fixed(self, more: int = 0) -> Ints:
        """Return those of the fixed design, or of one with so many more seeds of each arm."""
        own = np.where(self.layout.alone, FIXED["alone"], FIXED["repair"])
        row = np.concatenate([[FIXED["case"], FIXED["control"]], own])
        return np.broadcast_to(row + more, self.gains.shape[:2])

    def statuses(self, seeds: Ints, bar: Bar) -> NDArray[np.str_]:
        """Return each hypothesis' status, (studies, hypotheses), of the arms that ran."""
        fails, effects = effects_of_all(self.layout, Measured.of_first(self.gains, seeds), bar)
        ran = seeds[:, ARMS:] > 0
        counted = replace(
            effects,
            settings_differ=effects.settings_differ & ran,
            **{name: getattr(effects, name) | ~ran for name in ("known", "equivalent", "bounded")},
        )
        return np.stack(
            [
                status(fails, counted.of(self.layout.owner == n), self.mechanism[:, n])
                for n in range(self.layout.hypotheses)
            ],
            axis=-1,
        )


def layout_of(arms: int) -> tuple[Layout, Ints]:
    """Return hypotheses as the default study has them, over and over, until there are so many arms, and each arm's part.

    A part of the case is repaired in one arm and, where it can be, alone in another.
    """
    alone: list[bool] = []
    owner: list[int] = []
    part: list[int] = []
    pattern = [(0, True), (1, True), (1, True), (2, False), (3, False)]  # hypothesis, has an alone
    if arms == 1:
        pattern = pattern[-1:]
    number = 0
    while len(alone) < arms:
        round_ = number // len(pattern)
        hypothesis, both = pattern[number % len(pattern)]
        for design in ([True, False] if both else [False])[: arms - len(alone)]:
            alone.append(design)
            owner.append(4 * round_ + hypothesis)
            part.append(number)
        number += 1
    _, numbers = np.unique(owner, return_inverse=True)
    return Layout(np.array(alone), numbers), np.array(part)


def draw(world: World, studies: int, rng: np.random.Generator) -> Study:
    layout, part = layout_of(world.arms)
    defects = _defects(world, layout, part, rng, studies)
    has = part == defects[..., None]  # (studies, 2, arms): the arm is of this defect
    present = np.where(layout.alone, has, ~has)
    costs = np.array(COSTS[world.truth](world.effect))
    real = defects >= 0
    lost = costs[(present & real[..., None]).sum(1)]
    lost = lost + np.where(layout.alone, 0, world.unknown)
    case = costs[real.sum(1)] + world.unknown
    lost = np.concatenate([case[:, None], np.zeros((studies, 1)), lost], -1)
    gains = np.maximum(HEALTHY, case)[:, None] - lost
    owner = np.where(real, layout.owner[np.argmax(has, -1)], -1)
    causes = (owner[..., None] == np.arange(layout.hypotheses)).any(1)
    causes &= world.truth != "two that compensate"
    found = np.where(causes, world.sees, rng.random(causes.shape) < world.blames)
    noise = _noise(world.noise, gains, rng)
    return Study(layout, gains[..., None, None] + noise, causes, np.where(found, PRESENT, ABSENT))


def _defects(
    world: World, layout: Layout, part: Ints, rng: np.random.Generator, studies: int
) -> Ints:
    """Two parts of different hypotheses, (studies, 2), -1 for none."""
    count = 0 if world.truth.startswith("none") else 1 if world.truth == "one cause" else 2
    # a defect that another hides shows alone, and what hurts only with another in a repair
    hidden = world.truth == "two, each enough" or (count and world.unknown)
    able = np.unique(part[layout.alone] if hidden else part[~layout.alone])
    owner = np.array([layout.owner[np.argmax(part == each)] for each in able])
    order = np.argsort(rng.random((studies, len(able))), -1)
    first = order[:, 0]
    different = owner[order] != owner[first][:, None]
    second = order[np.arange(studies), np.argmax(different, -1)]
    chosen = np.stack([able[first], able[second]], -1)
    return np.where(np.arange(2) < count, chosen, -1)


def _noise(kind: str, gains: Floats, rng: np.random.Generator) -> Floats:
    """(..., seeds, 2): normal, with spreads that differ by arm; of kind "wide", all as of an arm that learns."""
    wide = (gains >= LEARNS) | (kind == "wide")
    spread = rng.uniform(*(np.where(wide, SPREADS[True][n], SPREADS[False][n]) for n in range(2)))
    one, other = rng.normal(size=(2, *gains.shape, LARGEST))
    noise: Floats = spread[..., None, None] * np.stack([one, 0.7 * one + 0.71 * other], -1)
    return noise


def rates(study: Study, seeds: Ints, bar: Bar) -> dict[str, float]:
    """Shares of studies that validate or locate what is no cause; of causes that are found, and that are cleared; and
    the runs of a study."""
    found = study.statuses(seeds, bar)
    located = np.isin(found, ["validated", "located_not_explained"])
    cleared = np.isin(found, ["invalidated", "explained_costs_nothing"])
    caused = study.causes if study.causes.any() else np.ones_like(study.causes)
    return {
        "false": float((located & ~study.causes).any(-1).mean()),
        "found": float(located[caused].mean()),
        "wrongly_cleared": float(cleared[caused].mean()),
        "runs": float(seeds.sum(-1).mean()),
    }
