"""Figures that look like one cause and come from another."""

from __future__ import annotations

import pandas as pd
import pytest

from rlvr_debug.causes import load_hypothesis
from rlvr_debug.verdicts.decide import borrowed

KL = load_hypothesis("kl-penalty")
# by arm: design, whose it is, status, largest KL by seed; the figures are of one shape with those of studies/kl-explodes.yaml
ARMS = {
    "case": ("case", "", None, [8600.0, 94.0, 36_000.0]),
    "control": ("control", "", "validated", [0.3, 40.0, 0.2]),
    "generation-prompt": ("repair", "sequence-mismatch", "validated", [0.3, 0.2, 0.4]),
    "kl-beta-0": ("repair", "kl-penalty", "invalidated", [0.0, 0.0, 0.0]),
}


def said(**changes: tuple[str, str, str | None, list[float]]) -> str:
    """What is said with these arms; a name's underscores are hyphens there."""
    told = {**ARMS, **{name.replace("_", "-"): arm for name, arm in changes.items()}}
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


@pytest.mark.parametrize(
    "changes",
    [
        {"case": ("case", "", None, [2.0, 2.9, 3.0])},  # not ten times the control's
        {"generation_prompt": ("repair", "sequence-mismatch", "validated", [900.0] * 3)},
        {"generation_prompt": ("repair", "sequence-mismatch", "inconclusive", [0.3] * 3)},
        {"generation_prompt": ("repair", "kl-penalty", "validated", [0.3] * 3)},
        {"generation_prompt": ("alone", "sequence-mismatch", "validated", [0.3] * 3)},
        {"generation_prompt": ("repair", "library-functionality", "validated", [0.3] * 3)},
        {"case": ("case", "", None, [float("nan")] * 3)},  # a trainer that logs none
    ],
    ids=["ordinary", "stays", "no effect", "its own", "no repair", "a localiser", "not logged"],
)
def test_otherwise_nothing_is_said(
    changes: dict[str, tuple[str, str, str | None, list[float]]],
) -> None:
    assert said(**changes) == ""


def test_the_lowest_counts_of_several() -> None:
    lower = ("repair", "hidden-context", "validated", [0.1, 0.1, 0.1])
    assert "come from hidden-context" in said(attention_mask=lower)


def test_runs_without_the_figure_and_studies_without_a_control_say_nothing() -> None:
    arms = pd.DataFrame({"arm": ["case"], "design": ["case"], "status": [None]})
    assert borrowed(KL, arms, pd.DataFrame({"arm": ["case"], "kl_max": [1e5]})) == ""
    assert borrowed(KL, arms, pd.DataFrame({"arm": ["case"]})) == ""
    assert borrowed(load_hypothesis("hidden-context"), arms, pd.DataFrame()) == ""
