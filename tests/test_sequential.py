"""Who runs next in a study that is looked at several times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlvr_debug.verdicts.decide import Evidence, decide
from rlvr_debug.verdicts.looks import (
    LARGEST,
    MOST,
    Layout,
    effects_of_all,
    looked,
    next_seeds,
)
from rlvr_debug.verdicts.rule import (
    ABSENT,
    FIRST,
    PRESENT,
    REFUTED,
    UNTESTED,
    Bar,
    Measured,
    arm_table,
)
from rlvr_debug.verdicts.statistics import Sample
from tests.check_answer import case_answer
from tests.simulated import Study, World, draw

BAR = Bar.of(0.05, 0.1)
SLUGS = ("hidden-context", "sequence-mismatch", "kl-penalty", "advantage-scaling")
Ints = NDArray[np.int64]


def results(mean: object, seeds: object, sd: object = 0.02) -> Measured:
    """Of the case, the control and all arms, on the last axis; sampled and greedy alike."""
    gains, count = np.asarray(mean, dtype=float), np.asarray(seeds)
    spread = np.where(count > 1, np.broadcast_to(np.asarray(sd, dtype=float), gains.shape), np.nan)
    found = Sample(np.where(count > 0, gains, np.nan), spread, count)
    return Measured(found, found)


def layout(*arms: tuple[int, bool]) -> Layout:
    """Each arm's hypothesis, and whether it is alone."""
    owner, alone = zip(*arms, strict=True)
    return Layout(np.array(alone), np.array(owner))


PAIR = layout((0, True), (0, False))


@dataclass(frozen=True)
class Looked:
    """A few studies as a look finds them."""

    layout: Layout
    results: Measured
    mechanism: Ints

    @property
    def seeds(self) -> Ints:
        return self.results.sampled.seeds

    def next(self) -> Ints:
        return next_seeds(self.layout, self.results, self.mechanism, BAR)


@st.composite
def looks(draw_: st.DrawFn, studies: int = 3) -> Looked:
    """Any results of any arms, with as many seeds as a study may have."""
    arms = draw_(st.integers(1, 6))
    owner = sorted(draw_(st.lists(st.integers(0, 3), min_size=arms, max_size=arms)))
    alone = draw_(st.lists(st.booleans(), min_size=arms, max_size=arms))

    def table(values: st.SearchStrategy[float], columns: int) -> NDArray[np.float64]:
        count = studies * columns
        return np.reshape(draw_(st.lists(values, min_size=count, max_size=count)), (studies, -1))

    levels = st.sampled_from([-0.1, 0.0, 0.02, 0.1, 0.15, 0.2, 0.3, 0.31, 0.4])
    spreads = st.sampled_from([0.0, 0.005, 0.02, 0.05, 0.1])
    limits = np.array([LARGEST] * 2 + [MOST] * arms)
    seeds = np.minimum(table(st.integers(0, LARGEST), 2 + arms).astype(int), limits)
    found = results(table(levels, 2 + arms), seeds, table(spreads, 2 + arms))
    numbers = np.unique(owner, return_inverse=True)[1]
    mechanism = table(st.sampled_from([PRESENT, UNTESTED, ABSENT]), int(numbers.max()) + 1)
    return Looked(Layout(np.array(alone), numbers), found, mechanism.astype(int))


# --- properties


ANY = given(looks())
MANY, FEW = (settings(max_examples=count, deadline=None) for count in (50, 15))


@MANY
@ANY
def test_no_arm_is_to_have_fewer_seeds_than_it_has_nor_more_than_the_largest_number(
    study: Looked,
) -> None:
    found = study.next()
    assert (found >= study.seeds).all()
    assert (found[:, :2] <= LARGEST).all()
    assert (found[:, 2:] <= MOST).all()
    asked = found > study.seeds
    assert (found[asked] >= FIRST).all()
    assert (found[:, 2:] <= np.maximum(study.seeds[:, 2:] + 1, FIRST)).all()


@MANY
@ANY
def test_nothing_runs_once_the_case_is_shown_not_to_fail(study: Looked) -> None:
    fails, _ = effects_of_all(study.layout, study.results, looked(BAR))
    assert (study.next() == study.seeds)[fails == REFUTED].all()


def test_a_case_that_does_as_well_as_the_control_ends_the_study_whatever_its_arms_do() -> None:
    for mean in ([0.3, 0.3, 0.0, 0.3], [0.4, 0.3, 0.2, 0.2]):
        found = results(mean, [3, 3, 2, 2], 0.01)
        assert list(next_seeds(PAIR, found, np.array([PRESENT]), BAR)) == [3, 3, 2, 2]


@FEW
@ANY
def test_a_look_depends_on_results_alone(study: Looked) -> None:
    """Not on the studies beside it, on the order of arms, on what was asked before, nor on arms' numbers."""
    found = study.next()
    assert (study.next() == found).all()
    order = np.random.default_rng(0).permutation(len(study.layout.alone))
    places = np.concatenate([[0, 1], 2 + order])

    def of(n: int, at: Ints) -> Measured:
        return Measured(
            *(
                Sample(each.mean[n, at], each.sd[n, at], each.seeds[n, at])
                for each in (study.results.sampled, study.results.greedy)
            )
        )

    moved = Layout(study.layout.alone[order], study.layout.owner[order])
    for n in range(len(found)):
        one = next_seeds(study.layout, of(n, np.arange(len(places))), study.mechanism[n], BAR)
        other = next_seeds(moved, of(n, places), study.mechanism[n], BAR)
        assert list(one) == list(found[n])
        assert list(other) == list(found[n][places])


@FEW
@given(looks(), st.integers(0, 10**6))
def test_looks_end_and_the_last_one_asks_for_nothing(study: Looked, seed: int) -> None:
    """With whatever results, which may change with each seed: at most a look for each seed of the case and the control."""
    rng = np.random.default_rng(seed)
    has = np.zeros_like(study.seeds)
    for _ in range(LARGEST + MOST):
        found = results(rng.uniform(-0.1, 0.5, has.shape), has, rng.uniform(0, 0.1, has.shape))
        wanted = next_seeds(study.layout, found, study.mechanism, BAR)
        if (wanted == has).all():
            break
        has = wanted
    else:
        wanted = next_seeds(study.layout, found, study.mechanism, BAR)
        assert (wanted == has).all()


@MANY
@ANY
def test_the_case_and_the_control_have_as_many_seeds_as_what_more_is_compared_with_them(
    study: Looked,
) -> None:
    """So that the side with fewer seeds is the arm's, which says what look it is at."""
    found = study.next()
    asked = found[:, 2:] > study.seeds[:, 2:]
    other = np.where(study.layout.alone, found[:, [1]], found[:, [0]])
    assert (other >= found[:, 2:])[asked].all()


# --- what starts and what stops


def test_a_study_begins_with_what_is_alone_and_with_repairs_of_what_has_no_such_arm() -> None:
    begun = layout((0, True), (0, False), (1, False))
    found = next_seeds(begun, results([0] * 5, [0] * 5), np.array([PRESENT, PRESENT]), BAR)
    assert list(found) == [2, 2, 2, 0, 2]


def test_repairs_begin_where_the_alone_arms_say_nothing() -> None:
    for absent in (PRESENT, ABSENT):
        silent = results([0.0, 0.3, 0.3, 0], [3, 3, 2, 0], 0.02)
        assert next_seeds(PAIR, silent, np.array([absent]), BAR)[3] == FIRST
    unsure = results([0.0, 0.3, 0.23, 0], [3, 3, 2, 0], 0.03)
    assert list(next_seeds(PAIR, unsure, np.array([PRESENT]), BAR))[2:] == [3, 0]


def test_a_large_effect_stops_all_arms_of_its_hypothesis_and_no_other() -> None:
    two = layout((0, True), (0, False), (1, False))
    found = results([0.0, 0.3, 0.0, 0, 0.08], [4, 4, 3, 0, 2], 0.02)
    assert list(next_seeds(two, found, np.array([PRESENT, PRESENT]), BAR))[2:] == [3, 0, 3]


def test_an_arm_below_the_minimum_effect_stops_where_its_mechanism_is_absent() -> None:
    """Mending makes it a little worse: that is not equivalent to 0, and surely no cause."""
    one = layout((0, False))
    found = results([0.1, 0.3, 0.03], [3, 3, 2], 0.03)
    assert next_seeds(one, found, np.array([ABSENT]), BAR)[2] == 2
    assert next_seeds(one, found, np.array([PRESENT]), BAR)[2] == 3


def test_an_arm_that_would_be_as_open_with_all_seeds_is_given_up_from_three_seeds_on() -> None:
    one = layout((0, False))
    for seeds, then in ((2, 3), (3, 3)):
        found = results([0.2, 0.5, 0.11], [seeds + 2, seeds + 2, seeds], 0.03)
        assert next_seeds(one, found, np.array([PRESENT]), BAR)[2] == then
    promising = results([0.2, 0.5, 0.31], [6, 6, 4], 0.08)
    assert next_seeds(one, promising, np.array([PRESENT]), BAR)[2] == 5


def test_what_only_repairs_would_show_is_not_looked_for_where_one_arm_alone_fails_as_the_case_does() -> (
    None
):
    two = layout((0, True), (0, False), (1, True), (1, False))
    mechanism = np.array([PRESENT, PRESENT])
    whole = results([0.0, 0.3, 0.01, 0, 0.3, 0], [3, 3, 3, 0, 3, 0], 0.015)
    assert list(next_seeds(two, whole, mechanism, BAR)) == [3, 3, 3, 0, 3, 0]
    half = results([-0.15, 0.3, 0.01, 0, 0.3, 0], [3, 3, 3, 0, 3, 0], 0.015)
    assert list(next_seeds(two, half, mechanism, BAR))[2:] == [3, 0, 3, FIRST]


def test_the_case_and_the_control_go_on_until_the_case_is_shown_to_fail() -> None:
    one = layout((0, False))
    unsure = results([0.2, 0.3, 0.2], [3, 3, 3], [0.06, 0.06, 0.005])
    assert list(next_seeds(one, unsure, np.array([ABSENT]), BAR))[:2] == [4, 4]
    failing = results([0.0, 0.3, 0.0], [4, 4, 3], 0.01)
    assert list(next_seeds(one, failing, np.array([ABSENT]), BAR)) == [4, 4, 3]


def test_the_case_and_the_control_have_more_seeds_the_more_arms_are_compared_with_them() -> None:
    def control(arms: int, spread: float) -> int:
        several = layout(*((n, True) for n in range(arms)))
        found = results(
            [0.0, 0.3] + [0.22] * arms, [4, 3] + [3] * arms, [0.02, spread] + [0.05] * arms
        )
        return int(next_seeds(several, found, np.full(arms, PRESENT), BAR)[1])

    assert (control(1, 0.05), control(4, 0.05)) == (4, 6)
    assert control(4, 0.0) < 6  # a control that spreads less needs fewer


# --- errors are paid for, and the verdict is the look's


def test_looks_spend_no_more_than_alpha_together_and_least_at_first() -> None:
    share = looked(BAR).share(np.arange(1, LARGEST + 1))
    assert share[FIRST - 1 : MOST].sum() == pytest.approx(0.5)
    assert (np.diff(share) >= 0).all()
    assert list(BAR.share(np.arange(1, LARGEST + 1))) == [1] * LARGEST


def test_an_effect_that_one_look_would_find_is_not_found_by_the_first_of_several() -> None:
    one = layout((0, False))
    found = results([0.0, 0.3, 0.3], [2, 2, 2], 0.025)
    once, often = (effects_of_all(one, found, bar)[1] for bar in (BAR, looked(BAR)))
    assert once.large.all()
    assert not often.large.any()
    assert often.p_holm == pytest.approx(np.minimum(62 * once.p_holm, 1))


def tables(study: Study, seeds: Ints, n: int) -> tuple[pd.DataFrame, Ints]:
    """The runs of one study, as runs.csv has them."""
    alone, owner = study.layout.alone, study.layout.owner
    names = ["case", "control", *(f"arm-{k}" for k in range(len(alone)))]
    designs = ["case", "control", *("alone" if each else "repair" for each in alone)]
    slugs = ["", "", *(SLUGS[each] for each in owner)]
    rows = [
        {
            "arm": name,
            "design": design,
            "hypothesis": slug,
            "environment": "musique",
            "changes": "" if name == "case" else name,
            "seed": seed,
            "gain": study.gains[n, k, seed, 0],
            "gain_greedy": study.gains[n, k, seed, 1],
        }
        for k, (name, design, slug) in enumerate(zip(names, designs, slugs, strict=True))
        for seed in range(seeds[n, k])
    ]
    return pd.DataFrame(rows), study.mechanism[n]


@pytest.mark.parametrize(
    "world",
    [
        World("one cause", 8, 0.2),
        World("two, each enough", 8, 0.2, sees=False),
        World("two that compensate", 8, 0.2),
        World("two that hurt together", 8, 0.2, blames=0),
    ],
    ids=str,
)
def test_the_verdict_from_tables_of_different_seeds_by_arm_is_the_simulated_one(
    world: World,
) -> None:
    study = draw(world, 2, np.random.default_rng(1))
    seeds = study.looked_at(BAR)
    found = study.statuses(seeds, looked(BAR))
    for n in range(len(seeds)):
        assert len(set(seeds[n])) > 1
        runs, mechanism = tables(study, seeds, n)
        present = [slug for slug, seen in zip(SLUGS, mechanism, strict=True) if seen == PRESENT]
        arms = arm_table(runs, "musique", looked(BAR))
        evidence = Evidence(case_answer(*present), arms, training={"lora_r": 16}, whole_run=SLUGS)
        decided = decide(SLUGS, evidence, looked(BAR))
        assert [each.status for each in decided] == list(found[n])


def test_one_table_holds_each_arm_to_the_look_of_its_own_seeds() -> None:
    """Two arms of the same effect and spread: the one with more seeds is at a look that spends more."""
    two = layout((0, False), (1, False))
    few, many = (
        effects_of_all(two, results([0.0, 0.3, 0.2, 0.2], [6, 6, k, k], 0.02), looked(BAR))[1]
        for k in (3, 5)
    )
    mixed = effects_of_all(two, results([0.0, 0.3, 0.2, 0.2], [6, 6, 3, 5], 0.02), looked(BAR))[1]
    assert mixed.p_holm[1] < mixed.p_holm[0]
    once = effects_of_all(two, results([0.0, 0.3, 0.2, 0.2], [6, 6, 3, 5], 0.02), BAR)[1]
    ratio = once.p * np.array([62 / 2, 62 / 8])
    assert mixed.p_holm == pytest.approx([max(ratio[0], 2 * ratio[1]), 2 * ratio[1]])
    assert (few.p_holm > many.p_holm).all()
