"""The logs of kinds of mistakes: what they are made from, and how what is said of them is counted."""

from __future__ import annotations

import math

import pytest

from benchmarks.mistakes.kinds import HELD_OUT, Kind, load_kinds
from benchmarks.mistakes.make import make
from benchmarks.mistakes.score import (
    RESULTS,
    Answer,
    answers,
    read_lines,
    row,
    score,
)

KINDS = load_kinds()


def said(kind: Kind, *suspects: tuple[str, str]) -> Answer:
    return Answer(kind, 0, tuple(s for s, _ in suspects), tuple(c for _, c in suspects))


def test_a_kind_counts_once_and_a_healthy_one_is_blamed_by_a_check_alone() -> None:
    one = Kind("one", ("kl-penalty",), ({}, {}), 0)
    two = Kind("two", ("reward-signal",), ({},), 0)
    well, flat = Kind("well", (), ({},), 0), Kind("flat", (), ({},), 0)
    unseen = ("token-masking", "unseen")
    found = score(
        [
            said(one, ("kl-penalty", "kl-explodes")),
            said(one, ("gradient-explosion", "gradient-large"), ("kl-penalty", "kl-explodes")),
            said(two),
            said(well, ("kl-penalty", "kl-at-first"), unseen),
            said(flat, unseen),
        ]
    )
    assert (found.kinds, found.first[0], found.area[0]) == (2, 0.25, 0.5)
    assert (found.healthy, found.blamed, found.flat) == (2, 1, 1)


def test_what_a_subset_of_the_logs_is_said_to_be_is_better_than_chance_and_blames_nothing() -> None:
    lines = [line for line in read_lines() if line["run"] == 0][::4]
    found = score(answers(lines))
    assert found.kinds >= 20
    assert found.first[0] >= 0.5
    assert found.healthy >= 10
    assert found.blamed == 0


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
