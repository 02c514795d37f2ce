"""The logs of kinds of mistakes: what they are made from, and how what is said of them is counted."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.mistakes.fit import fitted
from benchmarks.mistakes.kinds import AGAIN, HELD_OUT, Kind, load_kinds
from benchmarks.mistakes.make import make
from benchmarks.mistakes.score import (
    RESULTS,
    Answer,
    answers,
    read_lines,
    reliability,
    row,
    score,
)
from rlvr_debug.diagnosis.checks import WEIGHTS

KINDS = load_kinds()


def said(kind: Kind, *causes: tuple[str, float]) -> Answer:
    return Answer(kind, 0, causes)


def test_a_kind_counts_once_and_what_does_not_stand_out_is_neither_right_nor_blame() -> None:
    one = Kind("one", ("kl-penalty",), ({}, {}), 0)
    two = Kind("two", ("reward-signal",), ({},), 0)
    well = Kind("well", (), ({},), 0)
    found = score(
        [
            said(one, ("kl-penalty", 0.9)),
            said(one, ("gradient-explosion", 0.6), ("kl-penalty", 0.5)),
            said(two, ("reward-signal", 0.4)),
            said(well, ("kl-penalty", 0.7)),
            said(well, ("kl-penalty", 0.3)),
            said(well),
        ]
    )
    assert (found.kinds, found.first[0], found.area[0], found.silent) == (2, 0.25, 0.5, 0.5)
    assert (found.healthy, found.blamed) == (3, 1)


def test_reliability_counts_the_first_cause_of_logs_that_nothing_was_fitted_on() -> None:
    new = Kind("new", ("kl-penalty",), ({},), HELD_OUT)
    known = Kind("known", ("kl-penalty",), ({},), 0)
    answered = [
        said(new, ("kl-penalty", 0.95)),
        said(new, ("reward-signal", 0.95), ("kl-penalty", 0.9)),
        said(known, ("reward-signal", 0.95)),
        said(Kind("well", (), ({},), HELD_OUT), ("kl-penalty", 0.6)),
    ]
    rows = reliability(answered).splitlines()
    assert "| 90% to 100% | 2 | 95% | 1 (50%) | ██████████ |" in rows
    assert "| 50% to 70% | 1 | 60% | 0 (0%) |  |" in rows


def test_what_a_subset_of_the_logs_is_said_to_be_is_better_than_chance_and_blames_little() -> None:
    lines = [line for line in read_lines() if line["run"] == 0][::4]
    found = score(answers(lines))
    assert found.kinds >= 20
    assert found.first[0] >= 0.5
    assert found.healthy >= 10
    assert found.blamed <= 1


@pytest.mark.heavy
def test_the_weights_are_those_that_the_command_makes() -> None:
    known = [x for x in read_lines() if KINDS[x["kind"]].fold != HELD_OUT and x["run"] < AGAIN]
    assert fitted(known) == pytest.approx(json.loads(WEIGHTS.read_text("utf-8")), abs=0.01)


@pytest.mark.heavy
def test_the_held_out_figure_is_that_of_the_logs() -> None:
    held_out = [line for line in read_lines() if KINDS[line["kind"]].fold == HELD_OUT]
    found = row("held out, with the sampler's log-probabilities", answers(held_out))
    assert found in RESULTS.read_text(encoding="utf-8").splitlines()


@pytest.mark.heavy
def test_a_log_is_made_again_as_it_stands() -> None:
    [line] = [
        each for each in read_lines() if (each["kind"], each["run"]) == ("sampler-never-synced", 0)
    ]
    again = make("sampler-never-synced", 0, KINDS["sampler-never-synced"].runs[0])
    assert again["completions"][0] == line["completions"][0]
    for new, old in zip(again["log_history"][:2], line["log_history"][:2], strict=True):
        assert new.keys() == old.keys()
        for name in new.keys() - {"step_time"}:
            assert math.isclose(new[name], old[name], rel_tol=1e-2, abs_tol=1e-4), name
