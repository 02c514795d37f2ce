"""How an arm's training went, in words, and whose symptoms it shows."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.report.answer import Course, courses
from rlvr_debug.verdicts.decide import borrowed

STEPS, SEEDS = 30, 3
Rewards = Callable[[np.random.Generator], Sequence[float]]


def noise(size: float) -> Rewards:
    return lambda rng: list(0.5 + size * rng.standard_normal(STEPS))


def course(
    rewards: Rewards, slope: tuple[float, float] = (-1, 1), norm: float = 1.0, kl: float = 0.1
) -> Course:
    """Of an arm beside a control whose reward spreads by 0.05. slope: its interval; norm, kl: the largest of a run."""
    rng = np.random.default_rng(0)
    told = {"control": noise(0.05), "case": rewards}
    curves = pd.DataFrame(
        {"arm": arm, "seed": seed, "step": step, "reward": reward}
        for arm, make in told.items()
        for seed in range(SEEDS)
        for step, reward in enumerate(make(rng), start=1)
    )
    figures = {"control": (1.0, 0.1), "case": (norm, kl)}
    runs = pd.DataFrame(
        {"arm": arm, "seed": seed, "grad_norm_max": n, "kl_max": k}
        for arm, (n, k) in figures.items()
        for seed in range(SEEDS)
    )
    arms = pd.DataFrame({"arm": arm, "slope_low": slope[0], "slope_high": slope[1]} for arm in told)
    return courses({"curves": curves, "runs": runs, "arms": arms})["case"]


@pytest.mark.parametrize(
    ("size", "slope", "norm", "kl", "expected"),
    [
        (0.05, (0.001, 0.01), 1.0, 0.1, ("improving", "stable")),
        (0.2, (0.001, 0.01), 1.0, 0.1, ("improving", "stable")),
        (0.05, (-0.01, -0.001), 1.0, 0.1, ("declining", "stable")),
        (0.2, (-0.01, 0.01), 1.0, 0.1, ("oscillating", "stable")),
        (0.05, (-0.01, 0.01), 99.0, 0.9, ("stable", "stable")),
        (0.05, (-0.01, 0.01), 100.0, 0.1, ("stable", "gradient explosion")),
        (0.05, (-0.01, 0.01), 1.0, 1.0, ("stable", "unstable")),
        (0.05, (-0.01, 0.01), 1e5, 1e5, ("stable", "gradient explosion")),
        (0.05, (-0.01, 0.01), 1.0, float("nan"), ("stable", "stable")),
    ],
)
def test_a_trend_is_the_slope_s_or_the_spread_s_and_stability_that_of_figures_beside_the_control_s(
    size: float, slope: tuple[float, float], norm: float, kl: float, expected: tuple[str, str]
) -> None:
    found = course(noise(size), slope, norm, kl)
    assert (found.trend, found.stability) == expected


def test_reversals_are_all_of_a_seesaw_none_of_a_line_and_two_thirds_of_noise() -> None:
    assert course(lambda rng: [step % 2 for step in range(STEPS)]).reversals == 1
    line = course(lambda rng: list(np.linspace(0, 1, STEPS)))
    assert line.reversals == 0
    assert line.spread == pytest.approx(0, abs=1e-12)
    of_noise = course(noise(1.0))
    assert of_noise.reversals == pytest.approx(2 / 3, abs=0.12)
    assert of_noise.spread == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_one_or_two_steps_has_neither(steps: int) -> None:
    found = course(lambda rng: [0.1 * step for step in range(steps)])
    assert (found.reversals, found.spread) == (0, 0)


# --- figures that look like one cause and come from another


Arm = tuple[str, str, str | None, list[float]]
KL = load_hypothesis("kl-penalty")
# by arm: design, whose it is, status, largest KL by seed; the figures are of one shape with those of studies/kl-explodes.yaml
ARMS: dict[str, Arm] = {
    "case": ("case", "", None, [8600.0, 94.0, 36_000.0]),
    "control": ("control", "", "validated", [0.3, 40.0, 0.2]),
    "generation-prompt": ("repair", "sequence-mismatch", "validated", [0.3, 0.2, 0.4]),
    "kl-beta-0": ("repair", "kl-penalty", "invalidated", [0.0, 0.0, 0.0]),
}


def said(name: str = "control", arm: Arm = ARMS["control"]) -> str:
    """What is said with these arms, of which one is changed or another one."""
    told = {**ARMS, name: arm}
    arms = pd.DataFrame(
        {"arm": name, "design": design, "hypothesis": slug, "status": status}
        for name, (design, slug, status, _) in told.items()
    )
    runs = pd.DataFrame(
        {"arm": name, "kl_max": value} for name, arm in told.items() for value in arm[3]
    )
    return borrowed(KL, arms, runs)


def test_a_symptom_that_another_cause_s_repair_takes_away_is_that_cause_s() -> None:
    assert said() == (
        "its figures come from sequence-mismatch: the largest KL is 8.6e+03 in the case, "
        "0.3 with generation-prompt mended and 0.3 in the control"
    )
    lower = ("repair", "hidden-context", "validated", [0.1] * 3)
    assert "come from hidden-context" in said("attention-mask", lower)


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("case", ("case", "", None, [2.0, 2.9, 3.0])),  # not ten times the control's
        ("case", ("case", "", None, [float("nan")] * 3)),  # a trainer that logs none
        ("generation-prompt", ("repair", "sequence-mismatch", "validated", [900.0] * 3)),
        ("generation-prompt", ("repair", "sequence-mismatch", "inconclusive", [0.3] * 3)),
        ("generation-prompt", ("repair", "kl-penalty", "validated", [0.3] * 3)),
        ("generation-prompt", ("alone", "sequence-mismatch", "validated", [0.3] * 3)),
        ("generation-prompt", ("repair", "library-functionality", "validated", [0.3] * 3)),
    ],
    ids=["ordinary", "not logged", "stays", "no effect", "its own", "no repair", "a localiser"],
)
def test_otherwise_nothing_is_said(name: str, arm: Arm) -> None:
    assert said(name, arm) == ""


def test_runs_without_the_figure_and_studies_without_a_control_say_nothing() -> None:
    arms = pd.DataFrame({"arm": ["case"], "design": ["case"], "status": [None]})
    assert borrowed(KL, arms, pd.DataFrame({"arm": ["case"], "kl_max": [1e5]})) == ""
    assert borrowed(KL, arms, pd.DataFrame({"arm": ["case"]})) == ""
    assert borrowed(load_hypothesis("hidden-context"), arms, pd.DataFrame()) == ""
