from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rlvr_debug.causes import (
    hypothesis_names,
    in_order,
    load_hypothesis,
    phase_of,
    write_hypothesis,
)
from rlvr_debug.causes.base import Hypothesis, hypothesis_of
from rlvr_debug.checkout import ROOT
from rlvr_debug.cli import main
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.study.arms import runs
from rlvr_debug.study.params import load_params
from tests.in_process import called

FULL = load_params(ROOT / "params.yaml", ROOT / "studies" / "full.yaml")


@pytest.mark.parametrize("slug", hypothesis_names())
def test_a_hypothesis_says_everything(slug: str) -> None:
    hypothesis = load_hypothesis(slug)
    assert hypothesis.slug == slug
    texts = {k: v for k, v in asdict(hypothesis).items() if isinstance(v, str)}
    assert all(text.strip() and "TODO" not in text for text in texts.values())
    others = {*hypothesis.alternatives, *hypothesis.prerequisites, *hypothesis.interactions}
    assert others <= set(hypothesis_names()) - {slug}
    assert hypothesis.alternatives


@pytest.mark.parametrize("slug", hypothesis_names())
def test_the_full_study_tests_every_hypothesis_with_at_least_one_arm(slug: str) -> None:
    assert FULL.arms[slug]
    assert slug in {run.hypothesis for run in runs(FULL)}


def test_phases_follow_priorities_and_prerequisites() -> None:
    every = hypothesis_names()
    for slug in every:
        hypothesis, phase = load_hypothesis(slug), phase_of(slug, every)
        assert phase >= {"critical": 1, "high": 2, "medium": 3, "low": 3}[hypothesis.priority]
        assert all(phase_of(other, every) < phase for other in hypothesis.prerequisites)
    assert {phase_of(slug, every) for slug in every} == {1, 2, 3}
    assert phase_of("advantage-scaling", every) == 2
    assert phase_of("kl-penalty", every) == 3  # H03 after H01


def test_in_a_phase_the_more_urgent_come_first_and_then_the_original_s_numbers() -> None:
    every = in_order(hypothesis_names())
    assert every[:4] == [
        *("lora-weight-sync", "eval-train-mismatch", "hidden-context", "sequence-mismatch")
    ]
    assert every[4:7] == ["advantage-scaling", "token-masking", "library-functionality"]
    assert every[-1] == "reward-signal"  # the only low one
    phases = [phase_of(slug, every) for slug in every]
    assert phases == sorted(phases)
    assert sorted(every) == list(hypothesis_names())
    # what a study does not test has no place, and holds nothing back
    assert in_order(["reward-signal", "kl-penalty"]) == ["kl-penalty", "reward-signal"]


def test_a_hypothesis_waits_for_a_prerequisite_of_its_own_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(slug: str) -> Hypothesis:
        after = {"gradient-explosion": ("kl-penalty",)}
        found = load_hypothesis(slug)
        return replace(found, prerequisites=after.get(slug, found.prerequisites))

    monkeypatch.setattr("rlvr_debug.causes.load_hypothesis", load)
    assert phase_of("gradient-explosion", hypothesis_names()) == 4


# --- a new one


@pytest.mark.parametrize("kind", ["cause", "localiser"])
def test_the_template_is_a_hypothesis_to_be_filled_in(tmp_path: Path, kind: str) -> None:
    path = write_hypothesis("learning-rate", kind, tmp_path)
    found = hypothesis_of("learning-rate", read_yaml(path), path)
    assert (found.slug, found.kind, found.claim) == ("learning-rate", kind, "TODO")
    assert len(found.arms) == 1


@pytest.mark.parametrize("slug", ["", "Learning", "learning_rate", "-rate", "rate-", "a/b", "9x"])
def test_a_bad_name_is_one_line_and_writes_nothing(tmp_path: Path, slug: str) -> None:
    with pytest.raises(InputError, match="expected words"):
        write_hypothesis(slug, "cause", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_stands_there_is_never_overwritten(tmp_path: Path) -> None:
    path = write_hypothesis("learning-rate", "cause", tmp_path)
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="stands there already"):
        write_hypothesis("learning-rate", "cause", tmp_path)
    assert path.read_text(encoding="utf-8") == "mine"


def test_the_command_says_what_it_wrote_or_why_not() -> None:
    found = called(main, "rlvr-debug", "new-hypothesis", "kl-penalty")
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert len(found.stderr.splitlines()) == 1
