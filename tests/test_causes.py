"""Causes as folders: what each has, and how a study takes its arms from there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.blocks import told
from rlvr_debug.causes import (
    cause_of,
    hypothesis_names,
    load_hypothesis,
    load_variant,
    stages_with,
    variant_names,
)
from rlvr_debug.causes.base import Intervention, Times
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.settings import STAGES, TrainingSettings
from rlvr_debug.replay.variants import segments_for
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import arm_of, load_params, value_of

PARAMS = load_params(ROOT / "params.yaml")
TRAINERS = ("own", "trl", "command")


@pytest.mark.parametrize("slug", hypothesis_names())
def test_a_causes_folder_names_itself_what_shows_it_and_arms_that_change_something(
    slug: str,
) -> None:
    hypothesis = load_hypothesis(slug)
    assert hypothesis.slug == slug
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


def loaded(tmp_path: Path, **keys: Any) -> Params:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(yaml.safe_dump({"study": "mine", **keys}), encoding="utf-8")
    return load_params(ROOT / "params.yaml", overlay)


def test_an_empty_arm_is_the_causes_own_and_anything_else_is_the_arm_itself(tmp_path: Path) -> None:
    arms = {"half-rate": {}, "clip-tenth": {"training": {"max_grad_norm": 0.5}}}
    found = loaded(tmp_path, hypotheses={"gradient-explosion": {"arms": arms}})
    assert told(found.arms["gradient-explosion"]) == {
        "half-rate": {"swap": ["importance_ratio"], "training": {"learning_rate": 2.0e-4}},
        "clip-tenth": {"training": {"max_grad_norm": 0.5}},
    }


def test_an_overlay_adds_to_an_arm_that_params_yaml_leaves_to_the_cause(tmp_path: Path) -> None:
    """Where params.yaml has {}, the cause's own stages and settings stay beside what the overlay says."""
    over: dict[str, Any] = {"kl-penalty": {"arms": {"kl-beta-0": {"swap": ["kl"]}}}}
    found = loaded(tmp_path, hypotheses=over).arms["kl-penalty"]
    assert told(found["kl-beta-0"]) == {"training": {"kl_beta": 0.0}, "swap": ["kl"]}
    over = {"hidden-context": {"arms": {"attention-mask": {"training": {"learning_rate": 1e-3}}}}}
    found = loaded(tmp_path, hypotheses=over).arms["hidden-context"]
    assert found["attention-mask"].swap == ("attention_mask",)
    assert found["attention-mask"].training == {"learning_rate": 1e-3}


def test_all_hypotheses_are_every_cause_with_each_of_its_own_arms(tmp_path: Path) -> None:
    found = loaded(tmp_path, hypotheses="all").arms
    assert set(found) == set(hypothesis_names())
    for slug, own in found.items():
        arms = load_hypothesis(slug).arms_on("own")
        about = load_hypothesis(slug).precondition is None
        assert list(own) == [arm.name for arm in arms if about or not arm.settings]


def test_arms_of_an_adapter_are_left_out_of_all_where_none_is_trained(tmp_path: Path) -> None:
    assert list(loaded(tmp_path, hypotheses="all").arms["lora-weight-sync"]) == ["forced-sync"]
    adapter = {"lora_r": 16, "lora_alpha": 32, "learning_rate": 2e-3}
    found = loaded(tmp_path, hypotheses="all", training=adapter).arms["lora-weight-sync"]
    assert list(found) == ["forced-sync", "verified-sync", "full-fine-tuning"]
    full = {"lora_r": 0, "lora_alpha": 16, "learning_rate": 4e-4}
    assert found["full-fine-tuning"].training == full
    # a case may have an adapter that the control has not
    case = {"mine": {"faults": [], "training": adapter}}
    found = loaded(tmp_path, hypotheses="all", case="mine", cases=case).arms["lora-weight-sync"]
    assert found["full-fine-tuning"].training == full


def test_an_arm_whose_reward_parts_the_environment_lacks_is_left_out_of_all(tmp_path: Path) -> None:
    found = loaded(tmp_path, hypotheses="all", environment="gsm8k", case="healthy").arms
    assert list(found["reward-signal"]) == ["own-scores"]
    # another environment that is the study's own changes nothing
    assert list(found["multi-step"]) == ["with-calculator"]


def test_an_empty_arm_that_the_cause_does_not_have_is_one_line_with_the_nearest(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match="did you mean 'half-rate'") as error:
        loaded(tmp_path, hypotheses={"gradient-explosion": {"arms": {"halfrate": {}}}})
    assert "hypotheses.gradient-explosion.arms.halfrate" in str(error.value)


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
