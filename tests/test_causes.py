"""Causes as folders: what each says and has, their order, and how a study takes its arms from there."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.blocks import told
from rlvr_debug.causes import (
    Hypothesis,
    Intervention,
    Times,
    cause_of,
    hypothesis_names,
    hypothesis_of,
    in_order,
    load_hypothesis,
    load_variant,
    phase_of,
    stages_with,
    variant_names,
    write_hypothesis,
)
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.files import read_yaml
from rlvr_debug.grpo.settings import STAGES, TrainingSettings
from rlvr_debug.replay.variants import segments_for
from rlvr_debug.study.arms import arm_of, runs, value_of
from rlvr_debug.study.params import load_params
from tests.study_file import overlaid, refused

PARAMS = load_params(ROOT / "params.yaml")
TRAINERS = ("own", "trl", "command")


@pytest.mark.parametrize("slug", hypothesis_names())
def test_a_causes_folder_says_everything_and_has_arms_that_change_something(slug: str) -> None:
    hypothesis = load_hypothesis(slug)
    assert hypothesis.slug == slug
    texts = {k: v for k, v in asdict(hypothesis).items() if isinstance(v, str)}
    assert all(text.strip() and "TODO" not in text for text in texts.values())
    others = {*hypothesis.alternatives, *hypothesis.prerequisites, *hypothesis.interactions}
    assert others <= set(hypothesis_names()) - {slug}
    assert hypothesis.alternatives
    assert bool(segments_for(slug)) == (hypothesis.kind == "cause")
    for trainer in TRAINERS:
        arms = hypothesis.arms_on(trainer)
        assert len({arm.name for arm in arms}) == len(arms) > 0
        for arm in arms:
            assert arm.settings or arm.swap or arm.faults or arm.combined
            assert set(arm.swap) <= set(STAGES)
            assert set(arm.training) <= set(TrainingSettings.__dataclass_fields__)


def test_every_variant_implements_a_stage_of_grpo_and_stands_in_its_causes_folder() -> None:
    for name in variant_names():
        module = load_variant(name)
        assert module.STAGE in STAGES
        assert f".{cause_of(name).replace('-', '_')}." in module.__name__
        assert getattr(stages_with([name]), module.STAGE) is module.implementation


# --- arms of a study


def test_an_empty_arm_is_the_causes_own_and_anything_else_is_the_arm_itself(tmp_path: Path) -> None:
    arms = {"half-rate": {}, "clip-tenth": {"training": {"max_grad_norm": 0.5}}}
    found = overlaid(tmp_path, hypotheses={"gradient-explosion": {"arms": arms}})
    own = {"swap": ["importance_ratio"], "training": {"learning_rate": 2.0e-4}}
    assert told(found.arms["gradient-explosion"]) == {**arms, "half-rate": own}


def test_an_overlay_adds_to_an_arm_that_params_yaml_leaves_to_the_cause(tmp_path: Path) -> None:
    """Where params.yaml has {}, the cause's own stages and settings stay beside what the overlay says."""
    rate = {"training": {"learning_rate": 1e-3}}
    over: dict[str, Any] = {
        "kl-penalty": {"arms": {"kl-beta-0": {"swap": ["kl"]}}},
        "hidden-context": {"arms": {"attention-mask": rate}},
    }
    found = overlaid(tmp_path, hypotheses=over).arms
    both = {"training": {"kl_beta": 0.0}, "swap": ["kl"]}
    assert told(found["kl-penalty"]["kl-beta-0"]) == both
    assert told(found["hidden-context"]["attention-mask"]) == {"swap": ["attention_mask"], **rate}


def test_all_hypotheses_are_every_cause_with_each_of_its_own_arms(tmp_path: Path) -> None:
    found = overlaid(tmp_path, hypotheses="all").arms
    assert set(found) == set(hypothesis_names())
    for slug, own in found.items():
        arms = load_hypothesis(slug).arms_on("own")
        about = load_hypothesis(slug).precondition is None
        assert list(own) == [arm.name for arm in arms if about or not arm.settings]


def test_arms_of_an_adapter_are_left_out_of_all_where_none_is_trained(tmp_path: Path) -> None:
    def found(**values: Any) -> dict[str, Any]:
        return dict(overlaid(tmp_path, hypotheses="all", **values).arms["lora-weight-sync"])

    assert list(found()) == ["forced-sync"]
    adapter = {"lora_r": 16, "lora_alpha": 32, "learning_rate": 2e-3}
    full = {"lora_r": 0, "lora_alpha": 16, "learning_rate": 4e-4}
    # a case may have an adapter that the control has not
    case = {"mine": {"faults": [], "training": adapter}}
    for arms in (found(training=adapter), found(case="mine", cases=case)):
        assert list(arms) == ["forced-sync", "verified-sync", "full-fine-tuning"]
        assert arms["full-fine-tuning"].training == full


def test_an_arm_whose_reward_parts_the_environment_lacks_is_left_out_of_all(tmp_path: Path) -> None:
    found = overlaid(tmp_path, hypotheses="all", environment="gsm8k", case="healthy").arms
    assert list(found["reward-signal"]) == ["own-scores"]
    # another environment that is the study's own changes nothing
    assert list(found["multi-step"]) == ["with-calculator"]


def test_an_empty_arm_that_the_cause_does_not_have_is_one_line_with_the_nearest(
    tmp_path: Path,
) -> None:
    said = refused(tmp_path, hypotheses={"gradient-explosion": {"arms": {"halfrate": {}}}})
    assert "hypotheses.gradient-explosion.arms.halfrate" in said
    assert "did you mean 'half-rate'" in said


def test_a_trainer_that_is_not_ours_is_given_the_settings_of_an_arm_without_its_stages() -> None:
    arm = Intervention("both", swap=("assign",), training={"group_size": Times(2)})
    assert told(arm_of(arm, PARAMS)) == {"swap": ["assign"], "training": {"group_size": 8}}
    trl = replace(PARAMS, trainer="trl")
    assert told(arm_of(arm, trl)) == {"training": {"group_size": 8}}
    alone = Intervention("alone", swap=("assign",))
    assert told(arm_of(alone, trl)) == {"swap": ["assign"]}


@given(st.floats(1e-9, 1e3), st.floats(0.1, 10))
def test_times_multiplies_the_cases_value_and_keeps_its_kind(case: float, factor: float) -> None:
    assert value_of(Times(factor), case, None) == pytest.approx(case * factor, rel=1e-11)
    assert type(value_of(Times(2), round(case) + 1, None)) is int


def test_times_of_nothing_is_the_controls_or_what_stands_otherwise() -> None:
    assert value_of(Times(3), 4e-4, None) == 1.2e-3
    assert value_of(Times(10, of_zero=1), 0.0, 4e-4) == 4e-4
    assert value_of(Times(0.1), 0.0, 4e-4) == 4e-5
    assert value_of(Times(4, otherwise=1024), None, None) == 1024
    assert value_of("k2", "k3", "k3") == "k2"


# --- hypotheses


def test_the_full_study_tests_every_hypothesis_with_at_least_one_arm() -> None:
    full = load_params(ROOT / "params.yaml", ROOT / "studies" / "full.yaml")
    assert {slug for slug, arms in full.arms.items() if arms} >= set(hypothesis_names())
    assert {run.hypothesis for run in runs(full)} >= set(hypothesis_names())


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
    first = "lora-weight-sync eval-train-mismatch hidden-context sequence-mismatch"
    second = "advantage-scaling token-masking library-functionality"
    assert every[:7] == [*first.split(), *second.split()]
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
    with pytest.raises(InputError, match="exists; choose another name"):
        write_hypothesis("learning-rate", "cause", tmp_path)
    assert path.read_text(encoding="utf-8") == "mine"
