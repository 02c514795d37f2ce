"""How often studies err that are looked at several times, and what they cost: simulated, run and judged by the real code.

    python -m benchmarks.simulate_looks [--studies 4000] [--out docs]

In each row a design is run that many times: `next_seeds` chooses from what has run, look by look, or each arm has
the fixed design's seeds, or two more, with which a fixed design is about as sure as looks are. Prints the rates of
each, and writes them to OUT/looks.csv and between the marks of OUT/verdicts.md.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.simulate_verdicts import between_marks, read_spreads
from rlvr_debug.checkout import ROOT
from rlvr_debug.files import write_text
from rlvr_debug.study.params import load_params
from rlvr_debug.verdicts.rule import ABSENT, PRESENT, Bar, Measured, status
from rlvr_debug.verdicts.sequential import (
    ARMS,
    LARGEST,
    Layout,
    effects_of_all,
    looked,
    run_out,
)
from rlvr_debug.verdicts.statistics import Floats

__all__ = ["COSTS", "Study", "World", "draw", "layout_of", "main", "rates", "worlds"]

HEALTHY = 0.3  # what the control gains, or all that the case loses where that is more
LEARNS = 0.1  # a gain from which an arm spreads as one that learns
SPREADS = {
    True: (0.04, 0.06),
    False: (0.013, 0.02),
}  # measured, of arms that learn and of those that do not
FIXED = {"case": 3, "control": 5, "repair": 3, "alone": 5}  # seeds
SURER = 2  # more seeds, with which a fixed design finds a cause of 0.15 in nine of ten studies, as looks do
MARKS = ("<!-- looks: begin -->", "<!-- looks: end -->")

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
            told=effects.told & ran,
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
    """(..., seeds, 2): normal with spreads that differ by arm, or the measured residuals of an arm that spreads alike."""
    learning = gains >= LEARNS
    shape = (*gains.shape, LARGEST)
    wide = learning | (kind == "wide")
    spread = rng.uniform(*(np.where(wide, SPREADS[True][n], SPREADS[False][n]) for n in range(2)))
    if kind != "measured":
        one, other = rng.normal(size=shape), rng.normal(size=shape)
        return spread[..., None, None] * np.stack([one, 0.7 * one + 0.71 * other], -1)
    measured = list(read_spreads(ROOT / "benchmarks" / "spreads.csv").values())
    spreads = [each[:, 0].std() > 0.03 for each in measured]
    found = np.zeros((*shape, 2))
    for group in (True, False):
        residuals = np.stack(
            [each for each, is_wide in zip(measured, spreads, strict=True) if is_wide == group]
        )
        arm = rng.integers(len(residuals), size=gains.shape)[..., None]
        drawn = residuals[arm, rng.integers(residuals.shape[1], size=shape)]
        found = np.where((learning == group)[..., None, None], drawn, found)
    return found


def rates(study: Study, seeds: Ints, bar: Bar) -> dict[str, float]:
    """Shares of studies that validate or locate what is no cause; of causes that are found, and that are cleared; of
    other hypotheses that are cleared; and the runs of a study."""
    found = study.statuses(seeds, bar)
    located = np.isin(found, ["validated", "located_not_explained"])
    cleared = np.isin(found, ["invalidated", "explained_costs_nothing"])
    runs = seeds.sum(-1)

    def share(shown: NDArray[np.bool_], of: NDArray[np.bool_]) -> float:
        return float(shown[of].mean()) if of.any() else float("nan")

    return {
        "false": float((located & ~study.causes).any(-1).mean()),
        "found": share(located, study.causes),
        "wrongly_cleared": share(cleared, study.causes),
        "cleared": share(cleared, ~study.causes),
        "runs": float(runs.mean()),
        "runs_90": float(np.quantile(runs, 0.9)),
    }


def worlds() -> list[World]:
    """Return the rows. Of the first ones, with the default study's arms, there is one of each noise."""
    found = []
    for noise in ("by learning", "measured", "wide"):
        found += [
            *(World("one cause", 8, effect, noise) for effect in (0.1, 0.15, 0.2, 0.3)),
            *(World("two causes", 8, effect, noise) for effect in (0.15, 0.2)),
            *(World(truth, 8, 0.2, noise) for truth in list(COSTS)[2:5]),
            World("none, fails", 8, 0, noise, unknown=0.3),
            World("none, healthy", 8, 0, noise),
        ]
    for blames in (0, 1):  # the check sees no mechanism but the causes', or all
        found += [
            World("one cause", 8, 0.2, blames=blames),
            World("none, fails", 8, 0, unknown=0.3, blames=blames),
        ]
    found += [
        *(World("one cause", 8, effect, sees=False) for effect in (0.15, 0.2)),
        World("two that hurt together", 8, 0.2, sees=False),
        World("one cause", 8, 0.2, unknown=0.3),
        World("none, fails", 8, 0, unknown=0.15),
    ]
    for arms in (1, 2, 4, 16, 30):
        found += [
            *(World("one cause", arms, effect) for effect in (0.15, 0.2)),
            World("none, fails", arms, 0, unknown=0.3),
        ]
    return found + [World("two causes", arms, 0.2) for arms in (16, 30)]


def table_of(rows: list[World], studies: int, bar: Bar, seed: int) -> pd.DataFrame:
    """Return a row per world: what is so there, the rates with looks, and those of the fixed design."""
    found = []
    for n, world in enumerate(rows):
        study = draw(world, studies, np.random.default_rng([seed, n]))
        looks = rates(study, study.looked_at(bar), looked(bar))
        row = {**asdict(world), **looks}
        for design, more in (("fixed", 0), ("surer", SURER)):
            of = rates(study, study.fixed(more), bar)
            row |= {f"{design}_{name}": value for name, value in of.items() if name != "runs_90"}
            row[f"of_{design}"] = looks["runs"] / of["runs"]
        found.append(row)
    # as looks.csv has them, so that the page is made of the same figures
    return pd.DataFrame(found).round(4)


def summary(table: pd.DataFrame, studies: int) -> str:
    """The figures that matter, in words."""
    real = table[table["truth"] != "two that compensate"]
    of = {effect: real[real["effect"] == effect] for effect in (0.15, 0.2)}
    usual = table[(table["arms"] == 8) & table["noise"].isin(["by learning", "measured"])]
    caused = usual[(usual["effect"] >= 0.2) & (usual["truth"] != "two that compensate")]
    return (
        f"{studies} studies a row. What is no cause is blamed in at most {table['false'].max():.2%} of the studies of a "
        f"row, {table['false'].mean():.2%} on average (fixed design: {table['fixed_false'].max():.2%} and "
        f"{table['fixed_false'].mean():.2%}). A cause of 0.2 is found in at least {of[0.2]['found'].min():.1%} (fixed: "
        f"{of[0.2]['fixed_found'].min():.1%}) and cleared in at most {of[0.2]['wrongly_cleared'].max():.2%}; one of 0.15 is "
        f"found in at least {of[0.15]['found'].min():.1%} (fixed: {of[0.15]['fixed_found'].min():.1%}) and cleared in at "
        f"most {of[0.15]['wrongly_cleared'].max():.2%}. Of the fixed design's runs the looks need "
        f"{caused['of_fixed'].mean():.2f} where causes of 0.2 or more are at work in eight arms ({caused['of_fixed'].min():.2f} to "
        f"{caused['of_fixed'].max():.2f}), and {table['of_fixed'].mean():.2f} over all rows ({table['of_fixed'].min():.2f} to "
        f"{table['of_fixed'].max():.2f}). But that design is less sure. One with {SURER} more seeds of each arm finds a "
        f"cause of 0.15 in at least {of[0.15]['surer_found'].min():.1%} and blames what is none in at most "
        f"{table['surer_false'].max():.2%}; of its runs the looks need {caused['of_surer'].mean():.2f} where such causes are at "
        f"work ({caused['of_surer'].min():.2f} to {caused['of_surer'].max():.2f}), and {table['of_surer'].mean():.2f} over all "
        f"rows ({table['of_surer'].min():.2f} to {table['of_surer'].max():.2f})."
    )


def markdown(table: pd.DataFrame) -> str:
    """A line per row, shares in percent; the fixed design's in brackets."""
    rates_ = {"false": 2, "found": 1, "wrongly_cleared": 2, "cleared": 0}
    names = ["truth", "arms", "effect", "noise", "mechanisms"]
    header = [*names, *rates_, "runs", "of fixed"]
    lines = [
        "| " + " | ".join(name.replace("_", " ") for name in header) + " |",
        "|" + " --- |" * len(header),
    ]
    for row in table.to_dict("records"):
        truth = row["truth"] + (f", unknown {row['unknown']:g}" if row["unknown"] else "")
        seen = f"{row['sees']:d} and {row['blames']:g}"
        cells = [truth, str(row["arms"]), f"{row['effect']:g}", row["noise"], seen]
        for name, digits in rates_.items():
            both = [f"{100 * row[key]:.{digits}f}" for key in (name, f"fixed_{name}")]
            cells.append("" if np.isnan(row[name]) else f"{both[0]} ({both[1]})")
        cells += [f"{row['runs']:.1f} ({row['fixed_runs']:.0f})", f"{row['of_fixed']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml")
    bar = Bar.of(params.verdicts.alpha, params.verdicts.minimum_effect)
    table = table_of(worlds(), args.studies, bar, args.seed)
    words = textwrap.fill(summary(table, args.studies), 110, break_on_hyphens=False)
    print(words, table.to_string(index=False, float_format="{:.4g}".format), sep="\n\n")
    text = table.to_csv(index=False, float_format="%.4f", lineterminator="\n")
    write_text(args.out / "looks.csv", text)
    page = args.out / "verdicts.md"
    if page.exists():
        content = f"{words}\n\n{markdown(table)}"
        write_text(page, between_marks(page.read_text(encoding="utf-8"), content, MARKS))


if __name__ == "__main__":
    main()
