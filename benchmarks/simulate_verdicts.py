"""How often the rule errs, on simulated studies of the default's shape, judged by the real code.

    python -m benchmarks.simulate_verdicts [--spreads benchmarks/spreads.csv] [--studies 4000] [--out docs]

--spreads: measured gains, one row per arm and seed: arm, seed, gain, gain_greedy (runs.csv is one). Each
arm's noise is drawn from its own: normal with its covariance of sampled and greedy, or its residuals
resampled. Arms are drawn independently of each other, also those that a real study runs bit for bit alike.

One arm, another one in each study, has the effect, sampled and greedy; all others have none. Prints the
rates, and writes them to OUT/simulation.csv, OUT/simulation.svg and between the marks of OUT/verdicts.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import write_text
from rlvr_debug.report.charts import write_svg
from rlvr_debug.study.arms import arms, runs
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.verdicts.rule import (
    ABSENT,
    PRESENT,
    SHOWN,
    STATUSES,
    Bar,
    Effects,
    Measured,
    compare,
    status,
)
from rlvr_debug.verdicts.statistics import Floats, sample, welch

__all__ = ["Shape", "Simulated", "main", "read_spreads", "simulate", "study_shape"]

FOUND = STATUSES[1:-1]  # every simulated hypothesis has arms, and is applicable
NOISES = ("normal", "residuals")
MARKS = ("<!-- simulation: begin -->", "<!-- simulation: end -->")
Spreads = Mapping[str, Floats]


@dataclass(frozen=True)
class Shape:
    """Intervention arms of causes, in order: names, which are alone, and each hypothesis' own."""

    names: tuple[str, ...]
    alone: NDArray[np.bool_]
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Simulated:
    """planted: (studies,), the arm with the effect. statuses: (studies, hypotheses). covered: whether an
    interval holds its arm's true effect, (studies, arms)."""

    effects: Effects
    planted: NDArray[np.int64]
    statuses: NDArray[np.str_]
    covered: NDArray[np.bool_]


def study_shape(params: Params) -> Shape:
    changing = {run.arm for run in runs(params) if run.trained_as == run.arm}
    tested = [
        arm
        for arm in arms(params)
        if arm.name in changing
        and arm.design in ("repair", "alone")
        and arm.environment == params.environment
        and load_hypothesis(arm.hypothesis).kind == "cause"
    ]
    slugs = sorted({arm.hypothesis for arm in tested})
    return Shape(
        names=tuple(arm.name for arm in tested),
        alone=np.array([arm.design == "alone" for arm in tested]),
        members=tuple(
            tuple(n for n, arm in enumerate(tested) if arm.hypothesis == slug) for slug in slugs
        ),
    )


def read_spreads(path: Path) -> Spreads:
    """Residuals of each arm, (measured seeds, 2): sampled and greedy, scaled to the unbiased variance."""
    table = pd.read_csv(path, keep_default_na=False)
    spreads = {}
    for arm, group in table.groupby("arm"):
        gains = group[["gain", "gain_greedy"]].to_numpy(float)
        if len(gains) < 2 or not np.isfinite(gains).all():
            raise InputError(
                f"{path}: arm '{arm}' has {len(gains)} seeds, expected 2 or more gains"
            )
        spreads[str(arm)] = (gains - gains.mean(0)) * math.sqrt(len(gains) / (len(gains) - 1))
    return spreads


def complete(spreads: Spreads, names: Sequence[str]) -> tuple[Spreads, list[str]]:
    """Arms that were not measured are given the widest spread; and the names of these."""
    widest = max(spreads.values(), key=lambda residuals: float(residuals[:, 0].std()))
    missing = [name for name in names if name not in spreads]
    return {name: spreads.get(name, widest) for name in names}, missing


def draw(
    residuals: Floats, studies: int, seeds: int, noise: str, rng: np.random.Generator
) -> Floats:
    """(studies, seeds, 2): sampled and greedy noise of one arm."""
    if noise == "residuals":
        return residuals[rng.integers(len(residuals), size=(studies, seeds))]
    covariance = residuals.T @ residuals / len(residuals)
    return rng.multivariate_normal(np.zeros(2), covariance, size=(studies, seeds))


@dataclass(frozen=True)
class World:
    """What is so in all the studies. mechanism: of every hypothesis, PRESENT or ABSENT. effect, minimum: in held-out
    reward."""

    effect: float
    seeds: int
    studies: int
    noise: str
    mechanism: int
    alpha: float
    minimum: float


def simulate(shape: Shape, spreads: Spreads, world: World, rng: np.random.Generator) -> Simulated:
    """Return what the rule says of that many studies in which one hypothesis has the effect."""
    gains = {
        name: draw(spreads[name], world.studies, world.seeds, world.noise, rng)
        for name in ("case", "control", *shape.names)
    }
    planted = rng.integers(len(shape.names), size=world.studies)
    truth = world.effect * (np.arange(len(shape.names)) == planted[:, None])
    alone = shape.alone[:, None, None]
    own = np.stack([gains[name] for name in shape.names], axis=1)
    own = own + np.where(alone, -1, 1) * truth[..., None, None]
    better = np.where(alone, gains["control"][:, None], own)
    worse = np.where(alone, own, gains["case"][:, None])
    effects = compare(measured(better), measured(worse), Bar.of(world.alpha, world.minimum))
    interval = welch(better[..., 0], worse[..., 0], world.alpha)
    return Simulated(
        effects=effects,
        planted=planted,
        statuses=np.stack(
            [status(SHOWN, effects.of(list(own)), world.mechanism) for own in shape.members],
            axis=-1,
        ),
        covered=(interval.low <= truth) & (truth <= interval.high),
    )


def measured(gains: Floats) -> Measured:
    """gains: (..., seeds, 2)."""
    return Measured(sample(gains[..., 0]), sample(gains[..., 1]))


def rates(shape: Shape, simulated: Simulated, effect: float) -> dict[str, float]:
    """Shares: of each status, of the hypothesis with the effect (without an effect: of all); of studies
    in which a hypothesis without effect is validated, and in which an arm without effect is significant;
    and of intervals that hold the truth."""
    owner = np.array(
        [next(h for h, own in enumerate(shape.members) if n in own) for n in _arms(shape)]
    )
    has_effect = (np.arange(len(shape.members)) == owner[simulated.planted][:, None]) & (effect > 0)
    arm_has_effect = (_arms(shape) == simulated.planted[:, None]) & (effect > 0)
    of = simulated.statuses[has_effect] if effect > 0 else simulated.statuses.ravel()
    false = (simulated.statuses == "validated") & ~has_effect
    significant = simulated.effects.significant & ~arm_has_effect
    return {
        **{name: float((of == name).mean()) for name in FOUND},
        "false_validation": float(false.any(-1).mean()),
        "false_significance": float(significant.any(-1).mean()),
        "coverage": float(simulated.covered.mean()),
    }


def _arms(shape: Shape) -> NDArray[np.int64]:
    return np.arange(len(shape.names))


def simulation_table(
    shape: Shape, spreads: Spreads, studies: int, alpha: float, minimum: float, seed: int
) -> pd.DataFrame:
    """A row per mechanism, noise, number of seeds and true effect."""
    rng = np.random.default_rng(seed)
    rows = []
    for (name, mechanism), noise, seeds, effect in itertools.product(
        (("present", PRESENT), ("absent", ABSENT)), NOISES, (3, 5), (0.0, 0.1, 0.2, 0.3)
    ):
        world = World(effect, seeds, studies, noise, mechanism, alpha, minimum)
        found = simulate(shape, spreads, world, rng)
        rows.append(
            {"mechanism": name, "noise": noise, "seeds": seeds, "effect": effect}
            | rates(shape, found, effect)
        )
    return pd.DataFrame(rows)


def simulation_chart(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Shares of statuses by true effect; a panel per mechanism, number of seeds and noise."""
    shares = table.melt(["mechanism", "noise", "seeds", "effect"], list(FOUND), "status", "share")
    shares["status"] = shares["status"].str.replace("_", " ")
    shares["panel"] = (
        shares["mechanism"] + ", " + shares["seeds"].astype(str) + " seeds, " + shares["noise"]
    )
    order = [name.replace("_", " ") for name in FOUND]
    chart: alt.TopLevelMixin = (
        alt.Chart(shares)
        .mark_bar()
        .encode(
            x=alt.X("effect:O", title="true effect", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("share:Q", title="share of verdicts", scale=alt.Scale(domain=[0, 1])),
            color=alt.Color(
                "status:N",
                title=None,
                sort=order,
                scale=alt.Scale(
                    domain=order,
                    range=["#D55E00", "#CC79A7", "#E69F00", "#BBBBBB", "#56B4E9", "#009E73"],
                ),
            ),
            order=alt.Order("rank:Q"),
            facet=alt.Facet("panel:N", title=None, columns=4, sort=list(shares["panel"].unique())),
        )
        .transform_calculate(rank=f"indexof({order}, datum.status)")
        .properties(width=150, height=120)
        .configure(font="sans-serif")
    )
    return chart


def markdown(table: pd.DataFrame) -> str:
    """One table per mechanism, shares in percent."""
    parts = []
    for mechanism, group in table.groupby("mechanism", sort=False):
        header = [*group.columns.drop("mechanism")]
        lines = [
            "| " + " | ".join(name.replace("_", " ") for name in header) + " |",
            "|" + " --- |" * len(header),
        ]
        for row in group.to_dict("records"):
            cells = [row["noise"], str(row["seeds"]), f"{row['effect']:.1f}"]
            cells += [f"{100 * row[name]:.1f}" for name in header[3:]]
            lines.append("| " + " | ".join(cells) + " |")
        parts.append(f"Mechanism {mechanism}, in percent:\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def summary(table: pd.DataFrame, studies: int, alpha: float) -> str:
    """The figures that matter, in words."""
    null = table[table["effect"] == 0]
    false, error = null["false_validation"].max(), math.sqrt(alpha * (1 - alpha) / studies)
    power = table[(table["mechanism"] == "present") & (table["effect"] > 0)]
    words = ", ".join(
        f"{seeds} seeds at {effect:.1f}: {group.min():.1%}"
        for (seeds, effect), group in power.groupby(["seeds", "effect"])["validated"]
    )
    return (
        f"{studies} studies a row. Without any effect, at most {false:.1%} of studies validate a hypothesis "
        f"(aim: at most {alpha:.0%}; Monte Carlo error {error:.1%}), and in at most "
        f"{null['false_significance'].max():.1%} is an arm significantly above 0. Intervals hold the truth in "
        f"{table['coverage'].min():.1%} to {table['coverage'].max():.1%} (nominal {1 - alpha:.0%}). A true cause "
        f"is validated, under the less favourable noise: {words}."
    )


def between_marks(text: str, content: str, marks: tuple[str, str] = MARKS) -> str:
    begin, end = (text.index(mark) for mark in marks)
    return text[: begin + len(marks[0])] + f"\n{content}\n" + text[end:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--spreads", type=Path, default=ROOT / "benchmarks" / "spreads.csv")
    parser.add_argument("--overlay", type=Path)
    parser.add_argument("--studies", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    args = parser.parse_args()
    params = load_params(ROOT / "params.yaml", args.overlay)
    alpha, minimum = params.verdicts.alpha, params.verdicts.minimum_effect
    shape = study_shape(params)
    spreads, missing = complete(read_spreads(args.spreads), ("case", "control", *shape.names))
    table = simulation_table(shape, spreads, args.studies, alpha, minimum, args.seed)
    words = summary(table, args.studies, alpha)
    widths = [float(np.sqrt((residuals[:, 0] ** 2).mean())) for residuals in spreads.values()]
    words += (
        f" {len(shape.names)} intervention arms of {len(shape.members)} causes; standard deviations over "
        f"seeds of {min(widths):.3f} to {max(widths):.3f}, median {np.median(widths):.3f}."
    )
    if missing:
        words += f" Not measured, and given the widest spread: {', '.join(missing)}."
    words = textwrap.fill(words, 110, break_on_hyphens=False)
    print(words, table.to_string(index=False, float_format="{:.3f}".format), sep="\n\n")
    text = table.to_csv(index=False, float_format="%.4f", lineterminator="\n")
    write_text(args.out / "simulation.csv", text)
    write_svg(simulation_chart(table), args.out / "simulation.svg")
    page = args.out / "verdicts.md"
    if page.exists():
        content = f"{words}\n\n![Verdicts by true effect](simulation.svg)\n\n{markdown(table)}"
        write_text(page, between_marks(page.read_text(encoding="utf-8"), content))


if __name__ == "__main__":
    main()
