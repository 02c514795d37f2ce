from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
)

ALPHA, MINIMUM = 0.05, 0.1
BAR = Bar.of(ALPHA, MINIMUM)
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
