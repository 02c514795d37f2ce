"""How often the rule errs, look by look and at a fixed design's seeds, on simulated studies."""

import math

import numpy as np
import pytest

from rlvr_debug.verdicts.looks import looked
from rlvr_debug.verdicts.rule import PRESENT, Bar
from tests.simulated import SURER, World, draw, rates

BAR = Bar.of(0.05, 0.1)


@pytest.mark.parametrize(
    ("world", "least"),
    [(World("one cause", 8, 0.2), 0.95), (World("two that hurt together", 4, 0.2), 0.9)],
    ids=str,
)
def test_looks_find_what_the_fixed_design_finds_with_fewer_runs_and_blame_no_innocent(
    world: World, least: float
) -> None:
    study = draw(world, 300, np.random.default_rng(0))
    looks, fixed = study.looked_at(BAR), study.fixed()
    found = rates(study, looks, looked(BAR))
    assert found["found"] > least
    assert found["false"] < 0.02
    assert found["wrongly_cleared"] < 0.02
    assert found["runs"] < 0.9 * fixed.sum(-1).mean()


def test_a_fixed_design_is_as_sure_as_looks_with_two_more_seeds_and_not_before() -> None:
    study = draw(World("one cause", 8, 0.15), 300, np.random.default_rng(0))
    fixed, surer = (rates(study, study.fixed(more), BAR) for more in (0, SURER))
    looks = rates(study, study.looked_at(BAR), looked(BAR))
    assert fixed["found"] < 0.85 < 0.9 < min(surer["found"], looks["found"])
    assert looks["runs"] < 0.6 * surer["runs"]


def test_arms_that_do_nothing_are_seldom_taken_for_a_cause_whose_mechanism_is_there() -> None:
    study = draw(World("none, fails", 8, 0, unknown=0.3, blames=1), 2000, np.random.default_rng(0))
    assert (study.mechanism == PRESENT).all()
    most = 0.05 + 2 * math.sqrt(0.05 * 0.95 / 2000)
    assert rates(study, study.fixed(), BAR)["false"] <= most
    assert rates(study, study.looked_at(BAR), looked(BAR))["false"] <= most


def test_a_study_without_a_failure_ends_early_and_validates_nothing() -> None:
    study = draw(World("two that compensate", 8, 0.2), 300, np.random.default_rng(0))
    assert not study.causes.any()
    found = rates(study, study.looked_at(BAR), looked(BAR))
    assert found["false"] < 0.02
    assert found["runs"] < 22
