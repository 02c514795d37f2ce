from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttost_ind

from rlvr_debug.verdicts.statistics import (
    Estimate,
    equivalence_p,
    holm,
    mean_estimate,
    sample,
    slope_estimate,
    welch,
    welch_p,
)

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


@given(samples, st.sampled_from([0.01, 0.05, 0.2]))
def test_the_mean_s_interval_is_scipy_s_and_statsmodels(a: list[float], alpha: float) -> None:
    value, *interval, p = figures(mean_estimate(a, alpha))
    assert value == pytest.approx(np.mean(a))
    assert p == pytest.approx(stats.ttest_1samp(a, 0).pvalue)
    assert interval == pytest.approx(DescrStatsW(a).tconfint_mean(alpha))


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
