from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.verdicts.decide import Evidence, Verdict, decide, mechanism_of, observations
from rlvr_debug.verdicts.rule import (
    STATUSES,
    arm_table,
)
from rlvr_debug.verdicts.statistics import (
    mean_estimate,
)
from tests.made_up_runs import ALPHA, BAR, CAUSE, MINIMUM, Study, around, checked

CAUSES = [slug for slug in hypothesis_names() if load_hypothesis(slug).kind == "cause"]
GAINED = ("validated", "partially_validated")

levels = st.floats(-1, 1).map(lambda x: round(x, 4))
spreads = st.floats(0.001, 0.3).map(lambda x: round(x, 4))


def test_a_gain_with_its_mechanism_is_validated() -> None:
    verdict = Study().repair(around(0.4)).verdict()
    assert (verdict.status, verdict.confidence, verdict.mechanism) == (
        "validated",
        "high",
        "present",
    )
    assert verdict.effect == pytest.approx(0.4)
    assert verdict.ci_low < 0.4 < verdict.ci_high
    assert (verdict.seeds, verdict.kind, verdict.arm) == (3, "cause", "mend-6")
    assert "advantages deviates as by 'as advantage-scaling'" in verdict.evidence
    assert "mend-6: " in verdict.evidence
    assert "+0.400" in verdict.evidence


@pytest.mark.parametrize(
    ("fails", "expected", "confidence"),
    [
        (True, "explained_costs_nothing", "high"),
        (None, "invalidated", "high"),
        (False, "invalidated", "high"),
    ],
)
def test_an_effect_equivalent_to_0_is_no_cause(
    fails: bool | None, expected: str, confidence: str
) -> None:
    """With its mechanism it is half of the claim: the defect is there and does no harm."""
    verdict = Study().repair(around(0.0)).verdict(fails=fails)
    assert (verdict.status, verdict.confidence) == (expected, confidence)


def test_confidence_follows_from_the_p_value_that_decided() -> None:
    noisy = Study(case=around(0.0, 0.06)).repair(around(0.0, 0.05))
    [row] = [row for row in noisy.arms().to_dict("records") if row["design"] == "repair"]
    assert ALPHA / 5 < row["p_equivalence"] < ALPHA
    assert noisy.verdict(fails=None).confidence == "medium"
    assert noisy.verdict(fails=False).confidence == "high"  # two reasons that agree
    assert Study().repair(around(0.105, 0.01)).verdict().confidence == "medium"
    assert Study().repair(around(0.4, 0.01)).verdict().confidence == "high"


@pytest.mark.parametrize(
    ("fails", "expected"), [(True, "inconclusive"), (None, "inconclusive"), (False, "invalidated")]
)
def test_mending_that_makes_it_worse_neither_validates_nor_clears(
    fails: bool | None, expected: str
) -> None:
    study = Study(case=around(0.4), control=around(0.8)).repair(around(0.0))
    verdict = study.verdict(fails=fails)
    assert verdict.status == expected
    if fails is not False:
        assert "mending makes it worse" in verdict.evidence
        assert verdict.further_seeds == math.inf


def test_a_wide_interval_is_inconclusive_and_says_how_many_seeds_would_decide() -> None:
    verdict = Study().repair((-0.3, 0.1, 0.6)).verdict()
    assert (verdict.status, verdict.confidence) == ("inconclusive", "low")
    assert verdict.ci_high > MINIMUM
    assert f"{verdict.further_seeds:.0f} further seeds would decide" in verdict.evidence


@pytest.mark.heavy
@settings(max_examples=40)
@given(levels, spreads, levels, spreads)
def test_further_seeds_are_those_at_which_the_same_means_and_spreads_decide(
    mean: float, sd: float, other: float, other_sd: float
) -> None:
    """Whole studies of so many seeds, with just these means and spreads, are judged."""

    def gains(mean: float, sd: float, seeds: int) -> list[float]:
        shape = np.linspace(-1, 1, seeds)
        return list(mean + sd * shape / shape.std(ddof=1))

    def judged(seeds: int) -> Verdict:
        study = Study(gains(other, other_sd, seeds), gains(0.5, 0.1, seeds))
        return study.repair(gains(mean, sd, seeds)).verdict()

    verdict = judged(3)
    further = verdict.further_seeds
    assert math.isnan(further) == (verdict.status != "inconclusive")
    if math.isfinite(further):
        assert judged(3 + int(further)).status != "inconclusive"
    if further > 1:
        last = 100 if math.isinf(further) else 2 + int(further)
        assert judged(last).status == "inconclusive"


def test_hypotheses_that_the_same_intervention_mends_are_named() -> None:
    study = Study().repair(around(0.4)).add("other", "repair", "hidden-context", around(0.4))
    assert "not to be told from" not in study.verdict().evidence
    for row in study.rows:
        row["changes"] = "sync" if row["design"] == "repair" else ""
    assert "not to be told from hidden-context" in study.verdict().evidence
    assert f"not to be told from {CAUSE}" in study.verdict(slug="hidden-context").evidence


def test_a_sure_gain_that_may_be_large_enough_is_partial() -> None:
    for sampled, greedy in ((0.098, 0.098), (0.098, 0.4), (0.04, 0.4)):
        verdict = Study().repair(around(sampled, 0.002), around(greedy, 0.002)).verdict()
        assert verdict.p_holm < 0.05
        assert verdict.status == "partially_validated"


def test_the_smallest_gain_that_counts_does_count() -> None:
    minimum = float(np.mean(around(0.25, 0.001)) - np.mean(around(0.125, 0.001)))
    assert minimum == 0.125
    table = arm_table(
        pd.DataFrame(Study(case=around(0.125, 0.001)).repair(around(0.25, 0.001)).rows),
        "musique",
        replace(BAR, minimum=minimum),
    ).set_index("arm")
    assert table.loc["mend-6", "status"] == "validated"


def test_a_cause_that_another_hides_is_found_alone() -> None:
    """Mending one of two defects, of which each stops learning, changes nothing."""
    study = Study().repair(around(0.0)).alone(around(0.02))
    verdict = study.verdict()
    assert (verdict.status, verdict.arm) == ("validated", "mend-9-alone")
    assert verdict.effect == pytest.approx(0.38)
    assert all(f"{arm}: " in verdict.evidence for arm in ("mend-6", "mend-9-alone"))


def test_the_arm_that_says_most_speaks_for_its_hypothesis() -> None:
    study = Study().repair(around(0.0)).repair(around(0.4)).repair(around(0.3))
    assert study.verdict().arm == "mend-9"
    assert study.verdict().status == "validated"


def test_only_a_hypothesis_own_arms_count_for_it() -> None:
    study = Study().add("other", "repair", "hidden-context", around(0.4)).repair(around(0.0))
    assert study.verdict().status == "explained_costs_nothing"
    assert study.verdict(slug="hidden-context").status == "validated"


def test_a_hypothesis_without_arms_is_pending() -> None:
    for slug in hypothesis_names():
        verdict = Study().verdict(slug=slug)
        assert (verdict.status, verdict.confidence, verdict.seeds) == ("pending", "low", 0)
        assert math.isnan(verdict.effect)


def test_a_cause_s_arm_in_another_environment_has_no_effect_to_judge() -> None:
    """Its gain there says nothing against a case that ran elsewhere."""
    study = Study().add("there", "repair", CAUSE, around(0.9), environment="gsm8k")
    verdict = study.verdict()
    assert verdict.status == "pending"
    assert math.isnan(verdict.effect)
    both = study.repair(around(0.0)).verdict()
    assert (both.status, both.arm) == ("explained_costs_nothing", "mend-9")


def test_identical_seeds_neither_crash_nor_invent_an_effect() -> None:
    nothing = Study(case=(0.2,) * 3, control=(0.2,) * 3).repair((0.2,) * 3).alone((0.2,) * 3)
    assert set(nothing.arms()["p_holm"].dropna()) == {1.0}
    verdict = nothing.verdict()
    assert (verdict.status, verdict.effect) == ("explained_costs_nothing", 0)
    assert math.isnan(verdict.effect_in_sd)
    some = Study(case=(0.0,) * 3, control=(0.9,) * 3).repair((0.5,) * 3)
    assert some.verdict().status == "validated"


def test_runs_bit_for_bit_like_the_case_have_no_effect() -> None:
    gains = (0.01, -0.02, 0.03)
    verdict = Study(case=gains).repair(gains).verdict(fails=None)
    assert (verdict.effect, verdict.p_holm, verdict.status) == (0, 1, "invalidated")
    assert verdict.effect_in_sd == 0


def test_an_effect_is_shown_in_moderated_standard_deviations_over_seeds() -> None:
    """The case is the only arm that stays; the mended one and the control spread alike by chance."""
    study = Study(case=around(0.0, 0.03), control=around(0.4, 0.04)).repair(around(0.4, 0.04))
    found = study.verdict().effect_in_sd
    assert found == pytest.approx(0.4 / math.sqrt((0.03**2 + 0.04**2) / 2))


@pytest.mark.parametrize(
    ("slug", "fails"),
    [("kl-penalty", True), ("kl-penalty", False), *((slug, None) for slug in hypothesis_names())],
)
def test_one_seed_shows_nothing(slug: str, fails: bool | None) -> None:
    study = Study(case=[0.0], control=[0.9])
    study.add("mend", "repair", slug, [0.9]).add("mend-alone", "alone", slug, [0.0])
    verdict = study.verdict(slug=slug, fails=fails)
    assert (verdict.status, verdict.confidence, verdict.seeds) == ("inconclusive", "low", 1)
    assert (verdict.ci_low, verdict.ci_high) == (-math.inf, math.inf)
    if verdict.kind == "cause":
        assert "one seed has no spread" in verdict.evidence
        assert math.isnan(verdict.further_seeds)
        assert verdict.p_holm == 1


def test_an_arm_that_changes_nothing_is_cleared_and_does_not_count_for_holm() -> None:
    gains, same = (0.28, 0.42, 0.48), (-0.01, 0.0, 0.01)  # the case's own runs
    alone, beside = Study().repair(gains), Study().repair(gains)
    for number in range(6):
        beside.add(f"idle-{number}", "repair", "hidden-context", same)
        for row in beside.rows[-3:]:
            row["changes"] = ""
    expected, found = (study.arms().set_index("arm")["p_holm"] for study in (alone, beside))
    assert found["mend-6"] == expected["mend-6"]
    assert found["idle-0"] == 1
    assert beside.verdict(fails=False, slug="hidden-context").status == "invalidated"


def test_a_mechanism_whose_part_the_case_has_right_already_is_no_finding() -> None:
    study = Study().add("idle", "repair", "hidden-context", (-0.01, 0.0, 0.01))
    for row in study.rows[-3:]:
        row["changes"] = ""
    verdict = study.verdict(fails=True, slug="hidden-context")
    assert verdict.status == "invalidated"
    assert "is a symptom of another cause" in verdict.evidence


def test_every_arm_of_a_cause_counts_for_holm_and_no_other() -> None:
    """A p value that is significant by itself is not among many."""
    gains = (0.2, 0.35, 0.5)
    few, many = (Study(control=around(0.4, 0.05)).repair(gains) for _ in range(2))
    few.add("where", "repair", "library-functionality", gains)
    for number in range(6):
        many.add(f"idle-{number}", "repair", "hidden-context", around(0.0, 0.011))
    one, seven = (study.arms().set_index("arm") for study in (few, many))
    assert few.verdict().status == "validated"
    assert few.verdict().p_holm == one.loc["mend-6", "p"]
    assert many.verdict().status == "inconclusive"
    assert many.verdict().p_holm == pytest.approx(7 * seven["p"].to_dict()["mend-6"])
    assert list(one.loc[["control", "where"], "p_holm"]) == list(one.loc[["control", "where"], "p"])


@pytest.mark.parametrize(
    ("gains", "status", "confidence"),
    [
        (around(0.5), "invalidated", "high"),
        (around(0.13, 0.03), "invalidated", "medium"),
        (around(0.0), "validated", "medium"),
        ((-0.3, 0.1, 0.6), "inconclusive", "low"),
    ],
)
def test_a_localiser_says_whether_the_simpler_setting_fails_too(
    gains: Sequence[float], status: str, confidence: str
) -> None:
    slug = "library-functionality"
    study = Study().add("gsm8k", "repair", slug, gains, environment="gsm8k")
    study.add("gsm8k-control", "control", "", around(0.5), environment="gsm8k")
    verdict = study.verdict(slug=slug)
    assert (verdict.kind, verdict.status, verdict.confidence) == ("localiser", status, confidence)
    expected = mean_estimate(gains, ALPHA)
    assert verdict.effect == pytest.approx(float(expected.value))
    table = study.arms().set_index("arm")
    assert table.loc[["gsm8k", "gsm8k-control"], "effect"].isna().all()


@pytest.mark.parametrize(
    ("single", "case", "status"),
    [
        (around(0.5), around(0.0), "validated"),
        (around(0.5), around(0.4), "invalidated"),
        (around(0.0), around(0.0), "invalidated"),
        ((-0.3, 0.1, 0.6), around(0.0), "inconclusive"),
        (around(0.5), (-0.3, 0.1, 0.6), "inconclusive"),
    ],
)
def test_multi_step_says_whether_single_steps_are_learned_where_the_case_is_not(
    single: Sequence[float], case: Sequence[float], status: str
) -> None:
    study = Study(case=case).add("single-step", "repair", "multi-step", single, environment="gsm8k")
    assert study.verdict(slug="multi-step").status == status


@pytest.mark.parametrize(
    ("simpler", "status", "arm"),
    [
        (around(0.0), "validated", "single-step"),
        (around(0.4), "invalidated", "with-calculator"),
        ((-0.3, 0.1, 0.6), "inconclusive", "with-calculator"),
    ],
)
def test_multi_step_is_refuted_by_a_simpler_task_with_tools_that_is_learned(
    simpler: Sequence[float], status: str, arm: str
) -> None:
    study = Study(case=around(0.0))
    study.add("single-step", "repair", "multi-step", around(0.5), environment="gsm8k")
    study.add("with-calculator", "repair", "multi-step", simpler, environment="calculator")
    verdict = study.verdict(slug="multi-step")
    assert (verdict.status, verdict.arm) == (status, arm)
    assert {"single-step", "with-calculator", "the case"} == {
        said.partition(":")[0] for said in observations(verdict.evidence)
    }


def test_an_arm_that_gives_the_case_a_fault_mends_nothing_in_words_either() -> None:
    study = Study(case=around(0.3)).add("with-tool-tokens", "repair", "token-masking", around(0.0))
    verdict = study.verdict(fails=False, slug="token-masking")
    assert verdict.status == "invalidated"
    assert "with-tool-tokens: with this fault the case gains -0.300" in verdict.evidence
    assert "mending" not in verdict.evidence


@pytest.mark.parametrize("slug", CAUSES)
def test_the_check_of_the_case_speaks_of_every_cause(slug: str) -> None:
    found = [mechanism_of(slug, checked(present)).present for present in (True, False, None)]
    assert found == [True, False, None]


gain_lists = st.lists(st.integers(-100, 100).map(lambda n: n / 100), min_size=3, max_size=3)


@settings(max_examples=50)
@given(
    case=gain_lists,
    control=gain_lists,
    repairs=st.lists(st.tuples(gain_lists, gain_lists), max_size=2),
    alone=st.lists(st.tuples(gain_lists, gain_lists), max_size=1),
    fails=st.booleans() | st.none(),
)
def test_whatever_the_gains_the_verdict_is_backed_by_its_figures(
    case: list[float],
    control: list[float],
    repairs: list[tuple[list[float], list[float]]],
    alone: list[tuple[list[float], list[float]]],
    fails: bool | None,
) -> None:
    study = Study(case, control)
    for gains in repairs:
        study.repair(*gains)
    for gains in alone:
        study.alone(*gains)
    verdict = study.verdict(fails=fails)
    assert verdict.status in STATUSES
    assert (verdict.status == "pending") == (not repairs and not alone)
    if verdict.status == "validated":
        assert fails
        assert min(verdict.effect, verdict.effect_greedy) >= MINIMUM
        assert verdict.p_holm < ALPHA
    if verdict.status in GAINED:
        assert fails
    if verdict.status == "invalidated" and fails is not False:
        assert max(abs(verdict.effect), abs(verdict.effect_greedy)) < MINIMUM
    assert (verdict.confidence == "low") == (verdict.status in ("inconclusive", "pending"))


# --- what a hypothesis is about


@pytest.mark.parametrize(
    ("lora_r", "fails", "changes", "status"),
    [
        (0, False, "", "not_applicable"),
        (0, None, "", "not_applicable"),
        # a sampler with old weights is found without an adapter too
        (0, True, "", "inconclusive"),
        (0, False, "sync", "located_not_explained"),
        (16, False, "", "invalidated"),
        (None, False, "", "invalidated"),  # what the case trains is not known
    ],
)
def test_without_what_it_is_about_a_hypothesis_is_not_applicable_and_never_cleared(
    lora_r: int | None, fails: bool | None, changes: str, status: str
) -> None:
    gains = around(0.4) if changes else (-0.01, 0.0, 0.01)
    study = Study().add("forced-sync", "repair", "lora-weight-sync", gains)
    study.rows = [
        {**row, "changes": changes} if row["arm"] == "forced-sync" else row for row in study.rows
    ]
    training = {} if lora_r is None else {"lora_r": lora_r}
    evidence = Evidence(checked(fails), study.arms(), training=training)
    [verdict] = decide(["lora-weight-sync"], evidence, BAR)
    assert verdict.status == status
    if status == "not_applicable":
        assert verdict.confidence == "none"
        assert math.isnan(verdict.effect)
        assert verdict.evidence.startswith("the case trains all weights, and no adapter")


def test_three_steps_without_a_mechanism_help_to_invalidate_nothing() -> None:
    """Of a cause that acts late, the check of the first steps sees nothing: only its arms, or the whole run, clear it."""
    bounded = Study(case=around(0.4), control=around(0.8)).repair(around(0.0))
    assert bounded.verdict(fails=False).status == "invalidated"
    found = bounded.verdict(fails=False, whole_run=False)
    assert (found.status, found.mechanism) == ("inconclusive", "not tested")
    assert "which say nothing of the later ones" in found.evidence
    # trained arms clear it by themselves, and no surer for what three steps do not show
    equivalent = Study().repair(around(0.0, 0.05))
    sure, found = (equivalent.verdict(fails=False, whole_run=each) for each in (True, False))
    assert (sure.status, found.status) == ("invalidated", "invalidated")
    assert (sure.confidence, found.confidence) == ("high", "medium")
