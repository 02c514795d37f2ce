"""The rule for verdicts on all that two arms may show, and where an earlier one misled."""

import itertools
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_debug.verdicts.decide import Evidence, Verdict, decide
from rlvr_debug.verdicts.rule import (
    ABSENT,
    OPEN,
    PRESENT,
    REFUTED,
    SHOWN,
    UNTESTED,
    Bar,
    Effects,
    Measured,
    arm_status,
    compare,
    status,
)
from rlvr_debug.verdicts.statistics import (
    Sample,
    holm,
    sample,
)
from tests.made_up_runs import ALPHA, BAR, CAUSE, MINIMUM, Study, around, checked

GAINED = ("validated", "partially_validated")

# --- the rule on arrays

BOTH = (False, True)


def shown(**columns: Any) -> Effects:
    """Effects of which only what the rule reads is given: one value per arm."""
    arrays: dict[str, Any] = {field.name: np.zeros(2) for field in fields(Effects)}
    return Effects(**{**arrays, **{name: np.array(value) for name, value in columns.items()}})


# (known, significant, gained, large, equivalent, bounded) of one arm, as they can go together
ARMS = [
    arm
    for arm in itertools.product(BOTH, repeat=6)
    for known, significant, gained, large, equivalent, bounded in [arm]
    if large <= gained <= significant <= known
    and equivalent <= bounded <= known
    and not (gained and bounded)
]
NAMES = ("known", "significant", "gained", "large", "equivalent", "bounded")


@pytest.mark.parametrize("fails", [SHOWN, OPEN, REFUTED])
@pytest.mark.parametrize("mechanism", [PRESENT, UNTESTED, ABSENT])
def test_every_combination_of_two_arms_has_exactly_the_status_that_the_docs_say(
    mechanism: int, fails: int
) -> None:
    """The table of docs/verdicts.md, cell by cell; what no cell names is inconclusive."""
    present, absent = mechanism == PRESENT, mechanism == ABSENT
    for differ, pair in itertools.product(
        itertools.product(BOTH, repeat=2), itertools.product(ARMS, repeat=2)
    ):
        columns = dict(zip(NAMES, zip(*pair, strict=True), strict=True))
        known, null, bounded = (all(columns[n]) for n in ("known", "equivalent", "bounded"))
        large, gained, some = (any(columns[n]) for n in ("large", "gained", "significant"))
        idle = known and not any(differ)
        located = fails == SHOWN and large and not idle
        costless = present and not idle and (null or (fails == REFUTED and known))
        holds = {
            "validated": located and present,
            "located_not_explained": located and not present,
            "explained_costs_nothing": costless,
            "invalidated": idle or (null and not present) or (absent and bounded),
            "partially_validated": fails == SHOWN
            and present
            and some
            and not (gained or null or idle),
        }
        holds["inconclusive"] = not any(holds.values())
        found = str(
            status(
                fails, shown(settings_differ=differ, results_differ=differ, **columns), mechanism
            )
        )
        assert [name for name, true in holds.items() if true] == [found]


# from what clears to what blames
BLAME = (
    *("invalidated", "explained_costs_nothing", "inconclusive", "partially_validated"),
    *("located_not_explained", "validated"),
)


def blame(fails: int, effects: Effects, mechanism: int) -> int:
    return BLAME.index(str(status(fails, effects, mechanism)))


def test_evidence_is_monotone_more_of_it_never_blames_less() -> None:
    """A failure that is shown, a mechanism that is there, and an arm that shows more of an effect.

    Without a failure nothing is blamed, whatever there is.
    """
    rising = [  # of one arm, from a null effect to a large one
        {"known": True, "equivalent": True, "bounded": True},
        {"known": True, "bounded": True},
        {"known": True},
        {"known": True, "significant": True},
        {"known": True, "significant": True, "gained": True, "large": True},
    ]
    arms = list(itertools.product(range(len(rising)), repeat=2))
    found = {}
    for pair, fails, mechanism in itertools.product(arms, (REFUTED, OPEN, SHOWN), (-1, 0, 1)):
        columns = {n: [rising[k].get(n, False) for k in pair] for n in NAMES}
        effects = shown(settings_differ=[True, True], results_differ=[True, True], **columns)
        found[(*pair, fails, mechanism)] = blame(fails, effects, mechanism)
    for key, value in found.items():
        if key[2] == REFUTED:
            assert value <= BLAME.index("inconclusive")
        # where nothing fails, a mechanism says that a defect is there and costs nothing
        for axis in (0, 1, 2) if key[2] == REFUTED else range(4):
            more = tuple(each + (n == axis) for n, each in enumerate(key))
            assert found.get(more, value) >= value, (key, more)


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
    effects = compare(better, worse, BAR)
    found, by_arm = status(SHOWN, effects, mechanism), arm_status(effects)
    for n in range(len(found)):
        alone = compare(row(better, n), row(worse, n), BAR)
        assert str(status(SHOWN, alone, mechanism)) == found[n]
        assert list(arm_status(alone)) == list(by_arm[n])
        assert alone.p_holm == pytest.approx(effects.p_holm[n])


@settings(max_examples=50)
@given(sides())
def test_nothing_is_claimed_without_a_mechanism_or_for_a_loss(
    study: tuple[Measured, Measured],
) -> None:
    effects = compare(*study, BAR)
    for mechanism in (UNTESTED, ABSENT):
        assert not np.isin(status(SHOWN, effects, mechanism), GAINED).any()
    loss = compare(*study[::-1], BAR)
    assert not (effects.significant & loss.significant).any()
    assert not (effects.significant & (effects.effect <= 0)).any()
    assert (effects.equivalent == loss.equivalent).all()


@settings(max_examples=50)
@given(sides(), st.floats(0, 0.5), st.integers(0, 3))
def test_what_is_validated_stays_so_as_an_effect_grows(
    study: tuple[Measured, Measured], by: float, arm: int
) -> None:
    better, worse = study
    before = status(SHOWN, compare(better, worse, BAR), PRESENT) == "validated"
    after = status(SHOWN, compare(mended(better, by, arm), worse, BAR), PRESENT)
    larger = compare(mended(better, by, arm), worse, BAR)
    gained = compare(better, worse, BAR)
    # a significant loss that shrinks makes the correction of the other arms harder
    assert (after[before & (gained.effect[..., arm] >= 0)] == "validated").all()
    assert (larger.large[..., arm] >= gained.large[..., arm]).all()


@settings(max_examples=50)
@given(sides(), st.floats(0, 0.2), st.floats(0.2, 1))
def test_a_stricter_rule_claims_no_more(
    study: tuple[Measured, Measured], more: float, less: float
) -> None:
    usual = compare(*study, BAR)
    assert (compare(*study, replace(BAR, minimum=MINIMUM + more)).gained <= usual.gained).all()
    assert (
        compare(*study, replace(BAR, minimum=MINIMUM + more)).equivalent >= usual.equivalent
    ).all()
    assert (compare(*study, Bar.of(ALPHA * less, MINIMUM)).large <= usual.large).all()
    assert (compare(*study, Bar.of(ALPHA * less, MINIMUM)).equivalent <= usual.equivalent).all()
    assert (usual.of([0, 1]).p_holm >= holm(usual.p[..., :2]) - 1e-12).all()


# --- where a rule misleads: each a study that an earlier version took for something else


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
            verdict = study.verdict(fails=fails)
            assert verdict.status == "inconclusive"
            assert study is gains or "contradiction" in verdict.evidence


@pytest.mark.parametrize("fails", [False, None])
def test_a_check_that_agrees_does_not_outweigh_a_large_effect(fails: bool | None) -> None:
    """A sampler that is asleep after the first sync may agree in the recorded steps."""
    verdict = Study().repair(around(0.32)).verdict(fails=fails)
    assert verdict.status == "located_not_explained"
    assert verdict.effect == pytest.approx(0.32)


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


def test_two_defects_that_are_fatal_together_and_harmless_alone_show_in_repairs() -> None:
    study = Study(case=around(0.0), control=around(0.4))
    for slug in (CAUSE, OTHER):
        study.add(f"{slug}-mended", "repair", slug, around(0.4, 0.011))
        study.add(f"{slug}-alone", "alone", slug, around(0.4, 0.012))
    found = verdicts(study)
    assert {each.status for each in found.values()} == {"validated"}
    assert {each.arm for each in found.values()} == {f"{CAUSE}-mended", f"{OTHER}-mended"}
