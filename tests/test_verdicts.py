from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from rlvr_debug.hypotheses import hypothesis_names, load_hypothesis
from rlvr_debug.hypotheses.base import Evidence
from rlvr_debug.verdicts.decide import STATUSES, Verdict, arm_table, decide, verdict_table
from rlvr_debug.verdicts.statistics import Estimate, holm, mean_estimate, slope_estimate, welch

ALPHA, MINIMUM = 0.05, 0.1
CAUSE, PROBE = "kl-penalty", "kl-estimator"
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


@given(samples, samples, st.sampled_from([0.01, 0.05, 0.2]))
def test_welch_is_scipy_s_and_statsmodels(a: list[float], b: list[float], alpha: float) -> None:
    found = welch(a, b, alpha)
    test = stats.ttest_ind(a, b, equal_var=False)
    compared = CompareMeans(DescrStatsW(a), DescrStatsW(b))
    low, high = compared.tconfint_diff(alpha, usevar="unequal")
    assert found.value == pytest.approx(np.mean(a) - np.mean(b))
    assert found.p == pytest.approx(test.pvalue)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_welch_by_hand() -> None:
    # variances 1 and 4: squared error 1/3 + 4/3, degrees of freedom (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2)
    error, freedom = math.sqrt(5 / 3), (25 / 9) / (1 / 18 + 16 / 18)
    half = float(stats.t.ppf(0.975, freedom)) * error
    found = welch([1, 2, 3], [2, 4, 6], 0.05)
    assert found.value == -2
    assert (found.low, found.high) == pytest.approx((-2 - half, -2 + half))
    assert found.p == pytest.approx(2 * stats.t.sf(2 / error, freedom))


@given(samples, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_mean_s_interval_is_scipy_s_and_statsmodels(a: list[float], alpha: float) -> None:
    found = mean_estimate(a, alpha)
    assert found.value == pytest.approx(np.mean(a))
    assert found.p == pytest.approx(stats.ttest_1samp(a, 0).pvalue)
    assert (found.low, found.high) == pytest.approx(DescrStatsW(a).tconfint_mean(alpha))


def test_the_mean_s_interval_by_hand() -> None:
    half = 4.302653 / math.sqrt(3)  # from a table of t with 2 degrees of freedom
    found = mean_estimate([1, 2, 3], 0.05)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2 - half, 2 + half))
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))


def test_holm_by_hand_in_the_given_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_its_definition(p_values: list[float]) -> None:
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    expected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        expected[index] = min(largest, 1.0)
    assert holm(p_values) == pytest.approx(expected)


def test_one_seed_gives_an_estimate_that_proves_nothing() -> None:
    for found in (welch([0.9], [0.1, 0.2, 0.3], 0.05), welch([0.9, 0.8], [0.1], 0.05)):
        assert (found.low, found.high, found.p) == (-math.inf, math.inf, 1.0)
    assert mean_estimate([0.9], 0.05) == Estimate(0.9, -math.inf, math.inf, 1.0)


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")
def test_no_spread_gives_a_point_and_not_nan() -> None:
    assert welch([0.5, 0.5], [0.5, 0.5], 0.05) == Estimate(0.0, 0.0, 0.0, 1.0)
    assert welch([0.5, 0.5], [0.25, 0.25], 0.05) == Estimate(0.25, 0.25, 0.25, 0.0)
    assert mean_estimate([0.0, 0.0], 0.05) == Estimate(0.0, 0.0, 0.0, 1.0)
    assert mean_estimate([0.5, 0.5], 0.05) == Estimate(0.5, 0.5, 0.5, 0.0)
    one_sided = welch([0.5, 0.6], [0.25, 0.25], 0.05)
    assert one_sided.low < 0.3 < one_sided.high
    assert 0 < one_sided.p < 1


def test_a_slope_is_per_step_and_its_interval_over_seeds() -> None:
    lines = [[0.1 + slope * step for step in range(5)] for slope in (0.01, 0.02, 0.03)]
    found, expected = slope_estimate(lines, 0.05), mean_estimate([0.01, 0.02, 0.03], 0.05)
    assert (found.value, found.low, found.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )


@pytest.mark.parametrize("ratio", [1, 3, 100])
def test_the_interval_covers_the_truth_as_often_as_it_says(ratio: float) -> None:
    """With 3 seeds a percentile bootstrap covers 80 to 87 %."""
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        found = welch(0.3 + rng.normal(0, 0.05, 3), rng.normal(0, 0.05 * ratio, 3), 0.05)
        covered += found.low <= 0.3 <= found.high
    assert covered / 1000 >= 0.93


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
        """fails: whether the cause's probe fails; None: it was not run."""
        found = decide([slug], Evidence(probes(fails), self.arms()), ALPHA, MINIMUM)
        assert len(found) == 1
        return found[0]


def probes(fails: bool | None) -> Mapping[str, Mapping[str, Any]]:
    if fails is None:
        return {}
    names = (
        "kl-estimator",
        "context-sensitivity",
        "sequence-diff",
        "weight-sync",
        "advantage-scale",
    )
    return {name: {"passed": not fails, "measured": {"error": 0.5}} for name in names}


def around(value: float, spread: float = 0.01) -> tuple[float, float, float]:
    return (value - spread, value, value + spread)


def test_a_gain_with_a_failing_probe_is_validated() -> None:
    verdict = Study().repair(around(0.4)).verdict()
    assert (verdict.status, verdict.confidence, verdict.mechanism) == (
        "validated",
        "high",
        "present",
    )
    assert verdict.effect == pytest.approx(0.4)
    assert verdict.ci_low < 0.4 < verdict.ci_high
    assert (verdict.seeds, verdict.kind, verdict.arm) == (3, "cause", "mend-6")
    assert "probe kl-estimator fails: error 0.5" in verdict.evidence
    assert "mend-6: " in verdict.evidence
    assert "+0.400" in verdict.evidence


@pytest.mark.parametrize("fails", [False, None])
def test_a_gain_without_its_mechanism_is_not_validated(fails: bool | None) -> None:
    verdict = Study().repair(around(0.4)).verdict(fails=fails)
    assert (verdict.status, verdict.confidence) == ("inconclusive", "low")
    assert verdict.mechanism == ("absent" if fails is False else "not tested")


@pytest.mark.parametrize("fails", [True, False])
def test_no_effect_is_invalidated_whatever_the_probe_says(fails: bool) -> None:
    verdict = Study().repair(around(0.0)).verdict(fails=fails)
    assert (verdict.status, verdict.confidence) == ("invalidated", "medium" if fails else "high")


def test_a_loss_is_not_a_gain() -> None:
    assert Study(case=around(0.4)).repair(around(0.0)).verdict().status == "invalidated"


def test_a_wide_interval_is_inconclusive() -> None:
    verdict = Study().repair((-0.3, 0.1, 0.6)).verdict()
    assert (verdict.status, verdict.confidence) == ("inconclusive", "low")
    assert verdict.ci_high > MINIMUM


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


def test_a_sure_gain_that_is_surely_too_small_explains_nothing() -> None:
    verdict = Study().repair(around(0.04, 0.002)).verdict()
    assert verdict.p_holm < 0.05
    assert verdict.ci_high < MINIMUM
    assert verdict.status == "invalidated"


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


def test_a_defect_that_does_no_harm_alone_is_invalidated() -> None:
    for harmless in (around(0.4), around(0.7)):
        assert Study().alone(harmless).verdict().status == "invalidated"


def test_the_arm_that_says_most_speaks_for_its_hypothesis() -> None:
    study = Study().repair(around(0.0)).repair(around(0.4)).repair(around(0.3))
    assert study.verdict().arm == "mend-9"
    assert study.verdict().status == "validated"


def test_only_a_hypothesis_own_arms_count_for_it() -> None:
    study = Study().add("other", "repair", "hidden-context", around(0.4)).repair(around(0.0))
    assert study.verdict().status == "invalidated"
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
    assert (both.status, both.arm) == ("invalidated", "mend-9")


def test_identical_seeds_neither_crash_nor_invent_an_effect() -> None:
    nothing = Study(case=(0.2,) * 3, control=(0.2,) * 3).repair((0.2,) * 3).alone((0.2,) * 3)
    assert set(nothing.arms()["p_holm"].dropna()) == {1.0}
    assert nothing.verdict().status == "invalidated"
    assert (
        Study(case=(0.0,) * 3, control=(0.9,) * 3).repair((0.5,) * 3).verdict().status
        == "validated"
    )


@pytest.mark.parametrize("slug", hypothesis_names())
def test_one_seed_validates_nothing(slug: str) -> None:
    study = Study(case=[0.0], control=[0.9])
    study.add("mend", "repair", slug, [0.9]).add("mend-alone", "alone", slug, [0.0])
    verdict = study.verdict(slug=slug)
    assert (verdict.status, verdict.seeds) == ("inconclusive", 1)
    assert (verdict.ci_low, verdict.ci_high) == (-math.inf, math.inf)


def test_every_effect_of_the_study_counts_for_holm() -> None:
    """A p value that is significant by itself is not among many."""
    gains = (0.28, 0.42, 0.48)
    assert 0.01 < welch(gains, (-0.01, 0.0, 0.01), ALPHA).p < ALPHA / 2
    few, many = Study(control=around(0.0)).repair(gains), Study(control=around(0.0)).repair(gains)
    for number in range(6):
        many.add(f"idle-{number}", "repair", "hidden-context", around(0.0))
    assert few.verdict().status == "validated"
    assert many.verdict().status == "inconclusive"
    assert many.verdict().p_holm == pytest.approx(8 * welch(gains, around(0.0), ALPHA).p)


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
    assert (verdict.effect, verdict.ci_low) == pytest.approx((expected.value, expected.low))
    table = study.arms().set_index("arm")
    assert table.loc[["gsm8k", "gsm8k-control"], "effect"].isna().all()


@pytest.mark.parametrize("slug", CAUSES)
def test_every_cause_is_judged_by_a_probe_of_its_own(slug: str) -> None:
    def finding(which: Mapping[str, Any]) -> Any:
        return load_hypothesis(slug).mechanism(Evidence(which, pd.DataFrame())).present

    deciding = [name for name in probes(True) if finding({name: probes(True)[name]}) is not None]
    assert len(deciding) == 1
    assert (finding(probes(True)), finding(probes(False)), finding({})) == (True, False, None)


def test_the_tables_have_the_columns_that_people_rely_on() -> None:
    table = verdict_table([Study().repair(around(0.4)).verdict(), Study().verdict()])
    assert list(table)[:9] == [
        *("hypothesis", "kind", "status", "confidence", "effect"),
        *("ci_low", "ci_high", "seeds", "evidence"),
    ]
    assert list(table["status"]) == ["validated", "pending"]


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
        assert verdict.ci_low > 0
    if verdict.status == "invalidated" and fails is not False:
        assert verdict.ci_high < MINIMUM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("studies", "spreads"),
    [
        pytest.param(600, (0.05,) * 9, id="equal spreads"),
        pytest.param(
            400, (0.05, 0.05, 0.002, 0.01, 0.02, 0.1, 0.3, 0.002, 0.2), id="unequal spreads"
        ),
    ],
)
def test_arms_that_do_nothing_are_seldom_taken_for_a_cause(
    studies: int, spreads: tuple[float, ...]
) -> None:
    """Every probe fails, no arm has an effect: at most alpha of all studies may claim any."""
    rng = np.random.default_rng(0)
    slugs = [CAUSES[number % len(CAUSES)] for number in range(7)]
    claims = significant = 0
    for _ in range(studies):
        gains = [list(rng.normal(0, spread, 3)) for spread in spreads]
        study = Study(*gains[:2])
        for number, (slug, values) in enumerate(zip(slugs, gains[2:], strict=True)):
            design = "repair" if number < 5 else "alone"
            study.add(f"arm-{number}", design, slug, values)
        arms = study.arms()
        significant += bool((arms["p_holm"] < ALPHA).any())
        if (arms["p"] < ALPHA).any():
            verdicts = decide(CAUSES, Evidence(probes(True), arms), ALPHA, MINIMUM)
            claims += any(verdict.status in GAINED for verdict in verdicts)
    assert claims / studies <= ALPHA
    assert 0 < significant / studies <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / studies)
