from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttost_ind

from benchmarks.simulate_verdicts import (
    Shape,
    Simulated,
    World,
    main,
    read_spreads,
    simulate,
    study_shape,
)
from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.replay.mechanism import mechanism_of
from rlvr_debug.study.params import load_params
from rlvr_debug.verdicts.decide import Evidence, Verdict, arm_table, decide, observations
from rlvr_debug.verdicts.rule import (
    ABSENT,
    PRESENT,
    STATUSES,
    UNTESTED,
    Effects,
    Measured,
    arm_status,
    compare,
    status,
)
from rlvr_debug.verdicts.statistics import (
    Estimate,
    Sample,
    equivalence_p,
    holm,
    mean_estimate,
    sample,
    slope_estimate,
    welch,
    welch_p,
)
from tests.check_answer import CAUSES as CHECKED_CAUSES
from tests.check_answer import case_answer

ALPHA, MINIMUM = 0.05, 0.1
CAUSE = "advantage-scaling"
CAUSES = [slug for slug in hypothesis_names() if load_hypothesis(slug).kind == "cause"]
GAINED = ("validated", "partially_validated")

samples = st.lists(st.floats(-1, 1).map(lambda x: round(x, 6)), min_size=2, max_size=8).filter(
    lambda values: float(np.ptp(values)) > 1e-4
)


@pytest.fixture(autouse=True, scope="module")
def no_collection() -> Iterator[None]:
    """statsmodels collects garbage at every correction, which takes most of the time here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gc.collect", lambda: 0)
        yield


# --- statistics


def figures(estimate: Estimate) -> tuple[float, float, float, float]:
    """Of a single estimate: value, low, high, p."""
    return float(estimate.value), float(estimate.low), float(estimate.high), float(estimate.p)


@given(samples, samples, st.sampled_from([0.01, 0.05, 0.2]))
def test_welch_is_scipy_s_and_statsmodels(a: list[float], b: list[float], alpha: float) -> None:
    value, *interval, p = figures(welch(a, b, alpha))
    test = stats.ttest_ind(a, b, equal_var=False)
    compared = CompareMeans(DescrStatsW(a), DescrStatsW(b))
    assert value == pytest.approx(np.mean(a) - np.mean(b))
    assert p == pytest.approx(test.pvalue)
    assert float(welch_p(sample(a), sample(b))) == pytest.approx(test.pvalue)
    assert interval == pytest.approx(compared.tconfint_diff(alpha, usevar="unequal"))


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")
@given(samples, samples, st.floats(0.001, 1))
def test_equivalence_is_statsmodels_tost(a: list[float], b: list[float], margin: float) -> None:
    expected = ttost_ind(a, b, -margin, margin, usevar="unequal")[0]
    found = equivalence_p(sample(a), sample(b), margin)
    assert float(found) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_welch_by_hand() -> None:
    # variances 1 and 4: squared error 1/3 + 4/3, degrees of freedom (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2)
    error, freedom = math.sqrt(5 / 3), (25 / 9) / (1 / 18 + 16 / 18)
    half = float(stats.t.ppf(0.975, freedom)) * error
    found = figures(welch([1, 2, 3], [2, 4, 6], 0.05))
    p = 2 * float(stats.t.sf(2 / error, freedom))
    assert found == pytest.approx((-2, -2 - half, -2 + half, p))


@given(samples, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_mean_s_interval_is_scipy_s_and_statsmodels(a: list[float], alpha: float) -> None:
    value, *interval, p = figures(mean_estimate(a, alpha))
    assert value == pytest.approx(np.mean(a))
    assert p == pytest.approx(stats.ttest_1samp(a, 0).pvalue)
    assert interval == pytest.approx(DescrStatsW(a).tconfint_mean(alpha))


def test_the_mean_s_interval_by_hand() -> None:
    half = 4.302653 / math.sqrt(3)  # from a table of t with 2 degrees of freedom
    found = figures(mean_estimate([1, 2, 3], 0.05))
    assert found == pytest.approx((2, 2 - half, 2 + half, 1 - math.sqrt(12 / 14)))


def test_holm_by_hand_in_the_given_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]).tolist() == [1.0, 1.0]
    assert holm([0.03]).tolist() == [0.03]
    assert holm([]).tolist() == []
    assert holm([0.01, math.nan, 0.04]).tolist() == pytest.approx([0.02, 1, 0.04])  # no test


@given(st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=1, max_size=4))
def test_holm_is_statsmodels_study_by_study(p_values: list[list[float]]) -> None:
    expected = [multipletests(study, method="holm")[1] for study in p_values]
    assert holm(p_values) == pytest.approx(np.array(expected))


def test_one_seed_gives_an_estimate_that_proves_nothing() -> None:
    for a, b in (([0.9], [0.1, 0.2, 0.3]), ([0.9, 0.8], [0.1])):
        assert figures(welch(a, b, 0.05))[1:] == (-math.inf, math.inf, 1.0)
        assert welch_p(sample(a), sample(b)) == 1
        assert equivalence_p(sample(a), sample(b), 100.0) == 1
    assert figures(mean_estimate([0.9], 0.05)) == (0.9, -math.inf, math.inf, 1.0)


def test_no_spread_gives_a_point_and_not_nan() -> None:
    assert figures(welch([0.5, 0.5], [0.5, 0.5], 0.05)) == (0.0, 0.0, 0.0, 1.0)
    assert figures(welch([0.5, 0.5], [0.25, 0.25], 0.05)) == (0.25, 0.25, 0.25, 0.0)
    assert figures(mean_estimate([0.0, 0.0], 0.05)) == (0.0, 0.0, 0.0, 1.0)
    assert figures(mean_estimate([0.5, 0.5], 0.05)) == (0.5, 0.5, 0.5, 0.0)
    _, low, high, p = figures(welch([0.5, 0.6], [0.25, 0.25], 0.05))
    assert low < 0.3 < high
    assert 0 < p < 1
    flat = sample([0.1] * 3)
    assert flat.sd == 0  # though the mean of three times 0.1 is not 0.1
    assert welch_p(flat, flat) == 1
    assert equivalence_p(flat, flat, 0.1) == 0


def test_a_slope_is_per_step_and_its_interval_over_seeds() -> None:
    lines = [[0.1 + slope * step for step in range(5)] for slope in (0.01, 0.02, 0.03)]
    expected = figures(mean_estimate([0.01, 0.02, 0.03], 0.05))
    assert figures(slope_estimate(lines, 0.05)) == pytest.approx(expected)


@pytest.mark.parametrize("ratio", [1, 3, 100])
def test_the_interval_covers_the_truth_as_often_as_it_says(ratio: float) -> None:
    """With 3 seeds a percentile bootstrap covers 80 to 87 %."""
    rng = np.random.default_rng(0)
    found = welch(
        0.3 + rng.normal(0, 0.05, (4000, 3)), rng.normal(0, 0.05 * ratio, (4000, 3)), 0.05
    )
    assert ((found.low <= 0.3) & (found.high >= 0.3)).mean() >= 0.94


# --- the rule on arrays

BOTH = (False, True)


def shown(**columns: Any) -> Effects:
    """Effects of which only what the rule reads is given: one value per arm."""
    arrays: dict[str, Any] = {field.name: np.zeros(2) for field in fields(Effects)}
    return Effects(**{**arrays, **{name: np.array(value) for name, value in columns.items()}})


# (known, significant, gained, large, equivalent) of one arm, as they can go together
ARMS = [
    (known, significant, gained, large, equivalent)
    for known, significant, gained, large, equivalent in itertools.product(BOTH, repeat=5)
    if large <= gained <= significant <= known
    and equivalent <= known
    and not (gained and equivalent)
]


@pytest.mark.parametrize("tested", list(itertools.product(BOTH, repeat=2)))
@pytest.mark.parametrize("mechanism", [PRESENT, UNTESTED, ABSENT])
def test_every_combination_of_two_arms_has_exactly_the_status_that_the_docs_say(
    mechanism: int, tested: tuple[bool, bool]
) -> None:
    names = ("known", "significant", "gained", "large", "equivalent")
    for pair in itertools.product(ARMS, repeat=2):
        known, significant, gained, large, equivalent = zip(*pair, strict=True)
        effects = shown(tested=tested, **dict(zip(names, zip(*pair, strict=True), strict=True)))
        no_effect = all(equivalent) and (any(tested) or mechanism != PRESENT)
        contradiction = mechanism == ABSENT and any(gained)
        holds = {
            "validated": mechanism == PRESENT and any(large),
            "partially_validated": mechanism == PRESENT
            and not any(large)
            and (no_effect or any(significant)),
            "invalidated": (mechanism == UNTESTED and no_effect)
            or (mechanism == ABSENT and all(known) and not contradiction),
        }
        holds["inconclusive"] = not any(holds.values())
        assert [name for name, true in holds.items() if true] == [str(status(effects, mechanism))]


spreads = st.floats(0, 0.3).map(lambda x: round(x, 4))
levels = st.floats(-1, 1).map(lambda x: round(x, 4))


@st.composite
def sides(draw: st.DrawFn, studies: int = 3, arms: int = 4) -> tuple[Measured, Measured]:
    """Better and worse side of each arm of a few studies."""

    def one() -> Sample:
        shape = (studies, arms)
        mean = draw(st.lists(levels, min_size=studies * arms, max_size=studies * arms))
        sd = draw(st.lists(spreads, min_size=studies * arms, max_size=studies * arms))
        return Sample(np.reshape(mean, shape), np.reshape(sd, shape), np.array(seeds))

    seeds = draw(st.integers(2, 8))
    return Measured(one(), one()), Measured(one(), one())


def mended(side: Measured, by: float, arm: int | slice = slice(None)) -> Measured:
    """The same side, with the gains of one arm higher by so much."""

    def more(sample: Sample) -> Sample:
        mean = sample.mean.copy()
        mean[..., arm] += by
        return Sample(mean, sample.sd, sample.seeds)

    return Measured(more(side.sampled), more(side.greedy))


@settings(max_examples=50)
@given(sides(), st.sampled_from([PRESENT, UNTESTED, ABSENT]))
def test_many_studies_at_once_are_judged_as_one_at_a_time(
    study: tuple[Measured, Measured], mechanism: int
) -> None:
    def row(side: Measured, n: int) -> Measured:
        return Measured(*(Sample(s.mean[n], s.sd[n], s.seeds) for s in (side.sampled, side.greedy)))

    better, worse = study
    effects = compare(better, worse, ALPHA, MINIMUM)
    found, by_arm = status(effects, mechanism), arm_status(effects)
    for n in range(len(found)):
        alone = compare(row(better, n), row(worse, n), ALPHA, MINIMUM)
        assert str(status(alone, mechanism)) == found[n]
        assert list(arm_status(alone)) == list(by_arm[n])
        assert alone.p_holm == pytest.approx(effects.p_holm[n])


@settings(max_examples=50)
@given(sides())
def test_nothing_is_claimed_without_a_mechanism_or_for_a_loss(
    study: tuple[Measured, Measured],
) -> None:
    effects = compare(*study, ALPHA, MINIMUM)
    for mechanism in (UNTESTED, ABSENT):
        assert not np.isin(status(effects, mechanism), GAINED).any()
    loss = compare(*study[::-1], ALPHA, MINIMUM)
    assert not (effects.significant & loss.significant).any()
    assert not (effects.significant & (effects.effect <= 0)).any()
    assert (effects.equivalent == loss.equivalent).all()


@settings(max_examples=50)
@given(sides(), st.floats(0, 0.5), st.integers(0, 3))
def test_what_is_validated_stays_so_as_an_effect_grows(
    study: tuple[Measured, Measured], by: float, arm: int
) -> None:
    better, worse = study
    before = status(compare(better, worse, ALPHA, MINIMUM), PRESENT) == "validated"
    after = status(compare(mended(better, by, arm), worse, ALPHA, MINIMUM), PRESENT)
    larger = compare(mended(better, by, arm), worse, ALPHA, MINIMUM)
    gained = compare(better, worse, ALPHA, MINIMUM)
    # a significant loss that shrinks makes the correction of the other arms harder
    assert (after[before & (gained.effect[..., arm] >= 0)] == "validated").all()
    assert (larger.large[..., arm] >= gained.large[..., arm]).all()


@settings(max_examples=50)
@given(sides(), st.floats(0, 0.2), st.floats(0.2, 1))
def test_a_stricter_rule_claims_no_more(
    study: tuple[Measured, Measured], more: float, less: float
) -> None:
    usual = compare(*study, ALPHA, MINIMUM)
    assert (compare(*study, ALPHA, MINIMUM + more).large <= usual.large).all()
    assert (compare(*study, ALPHA, MINIMUM + more).equivalent >= usual.equivalent).all()
    assert (compare(*study, ALPHA * less, MINIMUM).large <= usual.large).all()
    assert (compare(*study, ALPHA * less, MINIMUM).equivalent <= usual.equivalent).all()
    assert (usual.of([0, 1]).p_holm >= holm(usual.p[..., :2]) - 1e-12).all()


# --- studies of made-up runs


class Study:
    """Runs of a case and its control, and those of more arms; each value is that of one seed."""

    def __init__(
        self,
        case: Sequence[float] = (-0.01, 0.0, 0.01),
        control: Sequence[float] = (0.4, 0.41, 0.39),
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self.add("case", "case", "", case)
        self.add("control", "control", "", control)

    def add(
        self,
        arm: str,
        design: str,
        hypothesis: str,
        gains: Sequence[float],
        greedy: Sequence[float] | None = None,
        environment: str = "musique",
    ) -> Study:
        self.rows += [
            {
                "arm": arm,
                "design": design,
                "hypothesis": hypothesis,
                "environment": environment,
                "changes": "" if design in ("case", "control") else f"{arm}",
                "seed": seed,
                "gain": gain,
                "gain_greedy": gain_greedy,
            }
            for seed, (gain, gain_greedy) in enumerate(
                zip(gains, gains if greedy is None else greedy, strict=True)
            )
        ]
        return self

    def repair(self, gains: Sequence[float], greedy: Sequence[float] | None = None) -> Study:
        return self.add(f"mend-{len(self.rows)}", "repair", CAUSE, gains, greedy)

    def alone(self, gains: Sequence[float], greedy: Sequence[float] | None = None) -> Study:
        return self.add(f"mend-{len(self.rows)}-alone", "alone", CAUSE, gains, greedy)

    def arms(self) -> pd.DataFrame:
        return arm_table(pd.DataFrame(self.rows), "musique", ALPHA, MINIMUM)

    def verdict(self, *, fails: bool | None = True, slug: str = CAUSE) -> Verdict:
        """fails: whether the check finds the cause's mechanism; None: it saw nothing."""
        found = decide([slug], Evidence(checked(fails), self.arms()), ALPHA, MINIMUM)
        assert len(found) == 1
        return found[0]


def checked(present: bool | None) -> Mapping[str, Any]:
    """Return a check in which every mechanism is there, or none; None: of which nothing was seen."""
    return {} if present is None else case_answer(*(CHECKED_CAUSES if present else ()))


def around(value: float, spread: float = 0.01) -> tuple[float, float, float]:
    return (value - spread, value, value + spread)


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


@pytest.mark.parametrize("fails", [False, None])
def test_a_gain_without_its_mechanism_is_not_validated(fails: bool | None) -> None:
    verdict = Study().repair(around(0.4)).verdict(fails=fails)
    assert (verdict.status, verdict.confidence) == ("inconclusive", "low")
    assert verdict.mechanism == ("absent" if fails is False else "not tested")


@pytest.mark.parametrize(
    ("fails", "expected", "confidence"),
    [
        (True, "partially_validated", "high"),
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
    noisy = Study(case=around(0.0, 0.04)).repair(around(0.0, 0.03))
    [row] = [row for row in noisy.arms().to_dict("records") if row["design"] == "repair"]
    assert ALPHA / 5 < row["p_equivalence"] < ALPHA
    assert noisy.verdict(fails=None).confidence == "medium"
    assert noisy.verdict(fails=False).confidence == "high"  # two reasons that agree
    assert Study().repair(around(0.105, 0.01)).verdict().confidence == "medium"
    assert Study().repair(around(0.4, 0.01)).verdict().confidence == "high"


def test_equivalence_is_of_the_greedy_effect_too() -> None:
    study = Study().repair(around(0.0), greedy=around(0.4))
    assert study.verdict(fails=None).status == "inconclusive"


@pytest.mark.parametrize(
    ("fails", "expected"), [(True, "inconclusive"), (None, "inconclusive"), (False, "invalidated")]
)
def test_mending_that_makes_it_worse_neither_validates_nor_clears(
    fails: bool | None, expected: str
) -> None:
    verdict = Study(case=around(0.4)).repair(around(0.0)).verdict(fails=fails)
    assert verdict.status == expected
    if fails is not False:
        assert "mending makes it worse" in verdict.evidence
        assert verdict.further_seeds == math.inf


def test_a_wide_interval_is_inconclusive_and_says_how_many_seeds_would_decide() -> None:
    verdict = Study().repair((-0.3, 0.1, 0.6)).verdict()
    assert (verdict.status, verdict.confidence) == ("inconclusive", "low")
    assert verdict.ci_high > MINIMUM
    assert f"{verdict.further_seeds:.0f} further seeds would decide" in verdict.evidence


def test_a_wide_interval_below_the_minimum_clears_nothing() -> None:
    """The upper end of its interval is below the minimum, but so is the lower one by far."""
    verdict = Study(case=around(0.3, 0.2)).repair(around(0.0, 0.02)).verdict(fails=None)
    assert verdict.status == "inconclusive"


@settings(max_examples=40)
@given(levels, spreads.filter(bool), levels, spreads.filter(bool))
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


def test_a_large_effect_without_its_mechanism_is_a_contradiction() -> None:
    verdict = Study().repair(around(0.4), greedy=around(0.0)).verdict(fails=False)
    assert verdict.status == "inconclusive"
    assert "contradiction" in verdict.evidence
    untested = Study().repair(around(0.4)).verdict(fails=None)
    assert "was not tested" in untested.evidence
    assert "contradiction" not in untested.evidence


def test_hypotheses_that_the_same_intervention_mends_are_named() -> None:
    study = Study().repair(around(0.4)).add("other", "repair", "hidden-context", around(0.4))
    assert "not to be told from" not in study.verdict().evidence
    for row in study.rows:
        row["changes"] = "sync" if row["design"] == "repair" else ""
    assert "not to be told from hidden-context" in study.verdict().evidence
    assert f"not to be told from {CAUSE}" in study.verdict(slug="hidden-context").evidence


def test_a_wide_interval_and_no_mechanism_is_invalidated() -> None:
    assert Study().repair((-0.3, 0.1, 0.6)).verdict(fails=False).status == "invalidated"


def test_a_gain_only_when_sampled_is_sharpening_and_partial() -> None:
    verdict = Study().repair(around(0.4), greedy=around(0.02)).verdict()
    assert verdict.status == "partially_validated"
    assert (verdict.effect, verdict.effect_greedy) == pytest.approx((0.4, 0.02))


def test_a_sure_gain_that_may_be_large_enough_is_partial() -> None:
    for sampled, greedy in ((0.08, 0.08), (0.08, 0.4), (0.04, 0.4)):
        verdict = Study().repair(around(sampled, 0.002), around(greedy, 0.002)).verdict()
        assert verdict.p_holm < 0.05
        assert verdict.status == "partially_validated"


@pytest.mark.parametrize(
    ("fails", "expected"),
    [(True, "partially_validated"), (None, "invalidated"), (False, "invalidated")],
)
def test_a_sure_gain_that_is_surely_too_small_explains_nothing(
    fails: bool | None, expected: str
) -> None:
    verdict = Study().repair(around(0.04, 0.002)).verdict(fails=fails)
    assert verdict.p_holm < 0.05
    assert verdict.ci_high < MINIMUM
    assert verdict.status == expected


def test_the_smallest_gain_that_counts_does_count() -> None:
    minimum = float(np.mean(around(0.25, 0.001)) - np.mean(around(0.125, 0.001)))
    assert minimum == 0.125
    table = arm_table(
        pd.DataFrame(Study(case=around(0.125, 0.001)).repair(around(0.25, 0.001)).rows),
        "musique",
        ALPHA,
        minimum,
    ).set_index("arm")
    assert table.loc["mend-6", "status"] == "validated"


def test_a_cause_that_another_hides_is_found_alone() -> None:
    """Mending one of two defects, of which each stops learning, changes nothing."""
    study = Study().repair(around(0.0)).alone(around(0.02))
    verdict = study.verdict()
    assert (verdict.status, verdict.arm) == ("validated", "mend-9-alone")
    assert verdict.effect == pytest.approx(0.38)
    assert all(f"{arm}: " in verdict.evidence for arm in ("mend-6", "mend-9-alone"))


def test_a_defect_that_does_no_harm_alone_is_no_cause() -> None:
    harmless = Study().alone(around(0.4))
    assert harmless.verdict().status == "partially_validated"
    assert harmless.verdict(fails=None).status == "invalidated"
    assert Study().alone(around(0.7)).verdict().status == "inconclusive"  # it does good


def test_the_arm_that_says_most_speaks_for_its_hypothesis() -> None:
    study = Study().repair(around(0.0)).repair(around(0.4)).repair(around(0.3))
    assert study.verdict().arm == "mend-9"
    assert study.verdict().status == "validated"


def test_only_a_hypothesis_own_arms_count_for_it() -> None:
    study = Study().add("other", "repair", "hidden-context", around(0.4)).repair(around(0.0))
    assert study.verdict().status == "partially_validated"
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
    assert (both.status, both.arm) == ("partially_validated", "mend-9")


def test_identical_seeds_neither_crash_nor_invent_an_effect() -> None:
    nothing = Study(case=(0.2,) * 3, control=(0.2,) * 3).repair((0.2,) * 3).alone((0.2,) * 3)
    assert set(nothing.arms()["p_holm"].dropna()) == {1.0}
    verdict = nothing.verdict()
    assert (verdict.status, verdict.effect) == ("partially_validated", 0)
    assert math.isnan(verdict.effect_in_sd)
    some = Study(case=(0.0,) * 3, control=(0.9,) * 3).repair((0.5,) * 3)
    assert some.verdict().status == "validated"


def test_runs_bit_for_bit_like_the_case_have_no_effect() -> None:
    gains = (0.01, -0.02, 0.03)
    verdict = Study(case=gains).repair(gains).verdict(fails=None)
    assert (verdict.effect, verdict.p_holm, verdict.status) == (0, 1, "invalidated")
    assert verdict.effect_in_sd == 0


def test_an_effect_is_shown_in_standard_deviations_over_seeds() -> None:
    verdict = Study(case=around(0.0, 0.03)).repair(around(0.4, 0.04)).verdict()
    assert verdict.effect_in_sd == pytest.approx(0.4 / math.sqrt((0.03**2 + 0.04**2) / 2))


@pytest.mark.parametrize("fails", [True, False, None])
@pytest.mark.parametrize("slug", hypothesis_names())
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
    assert verdict.status == "inconclusive"
    assert "change nothing about the case" in verdict.evidence


def test_every_arm_of_a_cause_counts_for_holm_and_no_other() -> None:
    """A p value that is significant by itself is not among many."""
    gains = (0.28, 0.42, 0.48)
    p = figures(welch(gains, (-0.01, 0.0, 0.01), ALPHA))[3]
    assert 0.01 < p < ALPHA / 2
    few, many = Study(control=around(0.0)).repair(gains), Study(control=around(0.0)).repair(gains)
    few.add("where", "repair", "library-functionality", gains)
    for number in range(6):
        many.add(f"idle-{number}", "repair", "hidden-context", around(0.0))
    assert few.verdict().status == "validated"
    assert few.verdict().p_holm == pytest.approx(p)
    assert many.verdict().status == "inconclusive"
    assert many.verdict().p_holm == pytest.approx(7 * p)
    apart = few.arms().set_index("arm")
    assert apart.loc["where", "p_holm"] == pytest.approx(p)
    assert list(apart.loc[["control", "where"], "p_holm"]) == list(
        apart.loc[["control", "where"], "p"]
    )


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
    assert (verdict.effect, verdict.ci_low) == pytest.approx(figures(expected)[:2])
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


def test_the_tables_have_the_columns_that_people_rely_on() -> None:
    table = pd.DataFrame([Study().repair(around(0.4)).verdict(), Study().verdict()])
    assert list(table)[:9] == [
        *("hypothesis", "kind", "status", "confidence", "effect"),
        *("ci_low", "ci_high", "seeds", "evidence"),
    ]
    assert list(table["status"]) == ["validated", "pending"]
    assert {"effect_in_sd", "further_seeds"} <= set(table)
    assert {"effect_in_sd", "further_seeds", "p_equivalence"} <= set(Study().repair([0.1]).arms())


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


# --- simulated studies


def simulated(spread: float, effect: float = 0.0, **more: Any) -> tuple[Shape, Simulated]:
    """Of the default's shape; every mechanism is there unless told otherwise."""
    shape = study_shape(load_params(ROOT / "params.yaml"))
    rng = np.random.default_rng(0)
    residuals = spread * np.linalg.cholesky([[1, 0.5], [0.5, 1]]) @ rng.normal(size=(2, 1000))
    names = ("case", "control", *shape.names)
    settings: dict[str, Any] = {
        "effect": effect,
        "seeds": 3,
        "studies": 2000,
        "noise": "normal",
        "mechanism": PRESENT,
        "alpha": ALPHA,
        "minimum": MINIMUM,
    }
    world = World(**{**settings, **more})
    return shape, simulate(shape, dict.fromkeys(names, residuals.T), world, rng)


@pytest.mark.parametrize("noise", ["normal", "residuals"])
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("spread", [0.02, 0.1, 0.4])
def test_arms_that_do_nothing_are_seldom_taken_for_a_cause(
    spread: float, seeds: int, noise: str
) -> None:
    """Every mechanism is there, no arm has an effect: at most alpha of all studies may claim one."""
    _, found = simulated(spread, seeds=seeds, noise=noise)
    error = 2 * math.sqrt(ALPHA * (1 - ALPHA) / 2000)
    assert (found.statuses == "validated").any(-1).mean() <= ALPHA + error
    assert found.effects.significant.any(-1).mean() <= ALPHA + error
    assert 0.94 <= found.covered.mean() <= 0.97


def test_a_real_cause_is_found_more_often_with_more_seeds_and_never_without_mechanism() -> None:
    def power(seeds: int, mechanism: int) -> float:
        shape, found = simulated(0.03, effect=0.3, seeds=seeds, mechanism=mechanism)
        owner = [
            next(h for h, own in enumerate(shape.members) if arm in own) for arm in found.planted
        ]
        return float((found.statuses[np.arange(len(owner)), owner] == "validated").mean())

    assert 0.5 < power(3, PRESENT) < power(5, PRESENT)
    assert power(5, ABSENT) == 0


def test_a_rerun_of_the_simulation_writes_the_same_files_between_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, measured = tmp_path / "verdicts.md", tmp_path / "spreads.csv"
    page.write_text((ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8"), encoding="utf-8")
    rows = [
        f"{arm},{seed},{0.01 * seed},{0.02 * (seed % 2)}"
        for arm in ("case", "control", "attention-mask")
        for seed in range(4)
    ]
    measured.write_text("\n".join(["arm,seed,gain,gain_greedy", *rows]), encoding="utf-8")
    settings = ["--spreads", str(measured), "--out", str(tmp_path), "--studies", "20"]
    monkeypatch.setattr("sys.argv", ["simulate_verdicts", *settings])

    def written() -> dict[str, str]:
        main()
        return {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}

    first = written()
    assert set(first) == {"simulation.csv", "simulation.svg", "verdicts.md", "spreads.csv"}
    said = " ".join(first["verdicts.md"].split())
    for part in ("20 studies a row", "(simulation.svg)", "given the widest spread: "):
        assert part in said
    assert written() == first


def test_a_spread_of_one_seed_is_an_error_that_names_the_arm(tmp_path: Path) -> None:
    path = tmp_path / "spreads.csv"
    path.write_text("arm,seed,gain,gain_greedy\ncase,0,0.1,0.1\n", encoding="utf-8")
    with pytest.raises(InputError, match="arm 'case' has 1 seeds"):
        read_spreads(path)


# --- what a hypothesis is about


@pytest.mark.parametrize(
    ("lora_r", "fails", "changes", "status"),
    [
        (0, False, "", "not_applicable"),
        (0, None, "", "not_applicable"),
        # a sampler with old weights is found without an adapter too
        (0, True, "", "inconclusive"),
        (0, False, "sync", "inconclusive"),
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
    [verdict] = decide(["lora-weight-sync"], evidence, ALPHA, MINIMUM)
    assert verdict.status == status
    if status == "not_applicable":
        assert verdict.confidence == "none"
        assert math.isnan(verdict.effect)
        assert verdict.evidence.startswith("the case trains all weights, and no adapter")
