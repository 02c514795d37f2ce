"""What the check of a case says of a hypothesis' mechanism."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.errors import InputError
from rlvr_debug.replay import variants
from rlvr_debug.replay.mechanism import mechanism_of
from rlvr_debug.replay.variants import check_names
from tests.check_answer import CAUSES, case_answer


def changed(answer: dict[str, Any], segment: str, **told: Any) -> dict[str, Any]:
    segments = [{**s, **told} if s["segment"] == segment else s for s in answer["segments"]]
    return {**answer, "segments": segments}


@given(st.sets(st.sampled_from(CAUSES)))
def test_a_mechanism_is_there_where_its_name_is_and_nowhere_else(present: set[str]) -> None:
    answer = case_answer(*present)
    assert {slug for slug in CAUSES if mechanism_of(slug, answer).present} == present
    assert not [slug for slug in CAUSES if mechanism_of(slug, answer).present is None]


@pytest.mark.parametrize("slug", CAUSES)
def test_what_was_not_seen_is_not_absent(slug: str) -> None:
    found = mechanism_of(slug, case_answer(unseen=True, said="no such seam"))
    assert found.present is None
    assert "was not seen: no such seam" in found.text
    assert mechanism_of(slug, {}).present is None


def test_what_nothing_known_gives_speaks_for_the_nearest_cause_and_leaves_the_others_open() -> None:
    answer = changed(case_answer(), "loss", status="deviates", note="40 of 154 tokens")
    assert mechanism_of("loss-aggregation", answer).present is True
    for slug in ("kl-penalty", "token-masking", "gradient-explosion"):
        found = mechanism_of(slug, answer)
        assert found.present is None
        assert "nothing known gives: 40 of 154 tokens" in found.text
    assert mechanism_of("hidden-context", answer).present is False


def test_a_deviation_by_another_causes_name_is_no_mechanism_of_this_one() -> None:
    names = [{"name": "the KL is subtracted", "cause": "kl-penalty"}]
    answer = changed(case_answer(), "loss", status="deviates", names=names)
    assert mechanism_of("kl-penalty", answer).present is True
    assert mechanism_of("loss-aggregation", answer).present is False


@pytest.mark.parametrize(("passed", "present"), [(False, True), (True, False)])
def test_a_consequence_out_of_its_bound_is_a_mechanism(passed: bool, present: bool) -> None:
    answer = case_answer()
    answer["consequences"] = [
        {**each, "passed": passed or each["name"] != "limits"} for each in answer["consequences"]
    ]
    found = mechanism_of("context-truncation", answer)
    assert found.present is present
    assert "share 0.25" in found.text
    assert mechanism_of("reward-signal", answer).present is False


def test_a_localiser_has_no_mechanism() -> None:
    found = mechanism_of("multi-step", case_answer())
    assert (found.present, found.text) == (None, "")


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"segments": ("optimiser step",)}, "no segment 'optimiser step': did you mean"),
        ({"consequences": ("limit",)}, "no consequence 'limit': did you mean 'limits'"),
    ],
)
def test_a_causes_file_that_names_what_does_not_exist_is_an_error(
    told: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "_replays", lambda: {"optimizer-no-op": variants._Replay(**told)})
    with pytest.raises(InputError, match=said):
        check_names(["optimizer step"], ["limits"])
