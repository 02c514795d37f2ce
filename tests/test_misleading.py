"""Where a rule for verdicts misleads: each a study that an earlier version of this one took for something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlvr_debug.verdicts.decide import Evidence, Verdict, decide
from rlvr_debug.verdicts.rule import PRESENT, SHOWN, Bar, Measured, compare, status
from rlvr_debug.verdicts.statistics import sample
from tests.made_up_runs import ALPHA, BAR, CAUSE, MINIMUM, Study, around, checked

OTHER = "hidden-context"


def verdicts(study: Study, fails: bool | None = True, **training: Any) -> dict[str, Verdict]:
    """Of all hypotheses that have arms."""
    slugs = sorted({row["hypothesis"] for row in study.rows} - {""})
    evidence = Evidence(checked(fails), study.arms(), training=training)
    return {each.hypothesis: each for each in decide(slugs, evidence, BAR)}


def test_two_defects_that_compensate_in_a_case_that_learns_are_not_validated() -> None:
    """Each costs the control 0.3 by itself; the case with both is as good as the control."""
    study = Study(case=around(0.41, 0.02), control=around(0.4, 0.02))
    for slug, at in ((CAUSE, 0.1), (OTHER, 0.11)):
        study.add(f"{slug}-mended", "repair", slug, around(at, 0.02))
        study.add(f"{slug}-alone", "alone", slug, around(at, 0.02))
    found = verdicts(study)
    assert {each.status for each in found.values()} == {"explained_costs_nothing"}
    assert all("the case does not fail" in each.evidence for each in found.values())
    located = verdicts(study, fails=None)
    assert {each.status for each in located.values()} == {"inconclusive"}


def test_without_a_shown_failure_nothing_is_validated_or_located() -> None:
    study = Study(case=(0.0, 0.1, 0.5), control=around(0.4)).alone(around(0.0))
    assert study.arms().set_index("arm").loc["mend-6-alone", "status"] == "validated"
    for fails in (True, False, None):
        verdict = study.verdict(fails=fails)
        assert verdict.status == "inconclusive"
        assert "the case is not shown to fail" in verdict.evidence


@pytest.mark.parametrize("arms", [1, 8, 30])
def test_clearing_gets_no_easier_as_arms_are_added(arms: int) -> None:
    """A true effect of 0.2 that its check misses was cleared in 59 % of studies with 8 arms, and in 84 % with 30."""
    rng = np.random.default_rng(0)
    spread = rng.uniform(0.03, 0.07, (4000, arms, 1))

    def drawn(mean: float) -> Measured:
        gains = sample(mean + spread * rng.normal(size=(4000, arms, 3)))
        return Measured(gains, gains)

    better, worse = drawn(0.2), drawn(0.0)
    effects = compare(better, worse, BAR).of([0])
    cleared = status(SHOWN, effects, -PRESENT) == "invalidated"
    assert cleared.mean() < 0.001


def test_a_gain_that_greedy_decoding_does_not_show_is_validated_all_the_same() -> None:
    """At the ceiling of greedy decoding, and where a stale sampler costs 0.34 sampled and under 0.1 greedy."""
    ceiling = Study().repair(around(0.158), greedy=around(-0.041)).verdict()
    stale = Study().repair(around(0.34), greedy=around(0.05)).verdict()
    assert (ceiling.status, stale.status) == ("validated", "validated")


def test_greedy_decoding_may_contradict_a_gain_and_a_clearing() -> None:
    loses = Study().repair(around(0.3), greedy=around(-0.3))
    gains = Study().repair(around(0.0), greedy=around(0.3))
    for study in (loses, gains):
        for fails in (True, False, None):
            assert study.verdict(fails=fails).status == "inconclusive"


@pytest.mark.parametrize("fails", [False, None])
def test_a_check_that_agrees_does_not_outweigh_a_large_effect(fails: bool | None) -> None:
    """A sampler that is asleep after the first sync may agree in the recorded steps."""
    verdict = Study().repair(around(0.32)).verdict(fails=fails)
    assert verdict.status == "located_not_explained"
    assert verdict.effect == pytest.approx(0.32)


def test_a_swap_that_changes_nothing_exonerates_whatever_the_check_found() -> None:
    """With a nearly greedy sampler rewards are equal: the rewards have no contrast, and their swap is the case to the byte."""
    study = Study().add("swap", "repair", CAUSE, (-0.01, 0.0, 0.01))
    study.rows[-3:] = [{**row, "changes": ""} for row in study.rows[-3:]]
    verdict = study.verdict()
    assert verdict.status == "invalidated"
    assert "a symptom of another cause" in verdict.evidence


def test_of_the_stages_before_a_deviation_only_those_that_were_swapped_are_exonerated() -> None:
    """Where the first rollout is the baseline, one deviation implicates three stages."""
    study = Study().add("swap", "repair", CAUSE, (-0.01, 0.0, 0.01))
    study.rows[-3:] = [{**row, "changes": ""} for row in study.rows[-3:]]
    slugs = [CAUSE, "group-construction", "reward-signal"]
    found = decide(slugs, Evidence(checked(True), study.arms()), BAR)
    assert [each.status for each in found] == ["invalidated", "pending", "pending"]


def test_an_arm_whose_runs_are_the_case_s_to_the_last_digit_does_not_count_for_holm() -> None:
    """The mask hides the prompt, so that a mended prompt changes no run."""
    gains = (0.2, 0.35, 0.5)
    one, other = (Study(control=around(0.4, 0.05)).repair(gains) for _ in range(2))
    for n in range(6):
        other.add(f"masked-{n}", "repair", OTHER, (-0.01, 0.0, 0.01))
    p = one.arms().set_index("arm")["p_holm"].to_dict()["mend-6"]
    table = other.arms().set_index("arm")
    assert table["p_holm"].to_dict()["mend-6"] == p
    assert not table.loc["masked-0", "tested"]
    assert verdicts(other)[OTHER].status == "explained_costs_nothing"  # told otherwise: not cleared


def test_a_look_is_paid_for() -> None:
    """A bar of several looks finds what is clear at once, and not what is just significant."""
    gains, bar = (0.2, 0.35, 0.5), Bar(ALPHA / 5, MINIMUM, ALPHA)
    study = Study(control=around(0.4, 0.05)).repair(gains)
    evidence = Evidence(checked(True), study.arms())
    [once], [often] = (decide([CAUSE], evidence, each) for each in (BAR, bar))
    assert (once.status, often.status) == ("validated", "inconclusive")


def test_two_defects_that_are_fatal_together_and_harmless_alone_show_in_repairs() -> None:
    study = Study(case=around(0.0), control=around(0.4))
    for slug in (CAUSE, OTHER):
        study.add(f"{slug}-mended", "repair", slug, around(0.4, 0.011))
        study.add(f"{slug}-alone", "alone", slug, around(0.4, 0.012))
    found = verdicts(study)
    assert {each.status for each in found.values()} == {"validated"}
    assert {each.arm for each in found.values()} == {f"{CAUSE}-mended", f"{OTHER}-mended"}


def test_lora_weight_sync_is_not_cleared_in_a_study_without_an_adapter() -> None:
    study = Study().add("forced-sync", "repair", "lora-weight-sync", (-0.01, 0.0, 0.01))
    study.rows[-3:] = [{**row, "changes": ""} for row in study.rows[-3:]]
    found = verdicts(study, fails=None, lora_r=0)["lora-weight-sync"]
    assert found.status == "not_applicable"
