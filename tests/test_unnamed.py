"""What the case departs in and no hypothesis is about has arms of its own, and a verdict that stands first."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_debug.causes import hypothesis_names, load_hypothesis
from rlvr_debug.causes.unnamed import is_unnamed, unnamed_slug
from rlvr_debug.checkout import ROOT
from rlvr_debug.errors import InputError
from rlvr_debug.grpo.settings import STAGES, TrainingSettings
from rlvr_debug.report.answer import answer
from rlvr_debug.study.arms import arms, filled
from rlvr_debug.study.checks import check_references
from rlvr_debug.study.model import Params
from rlvr_debug.study.params import load_params
from rlvr_debug.study.plan import Rates, planned
from rlvr_debug.study.resolved import resolve
from rlvr_debug.trainers import Run
from tests.made_up_study import REPORT_SETTINGS
from tests.made_up_study import Study as MadeUp
from tests.study_file import changed

PARAMS = load_params(ROOT / "params.yaml")
RATES = Rates({}, 0.013, 1e6, "made up")
ARMS: dict[str, dict[str, Any]] = {
    "kl-penalty": {"arms": {"kl-beta-0": {}}},
    "optimizer-no-op": {"arms": {"triple-rate": {}}},
    "library-functionality": {"arms": {"gsm8k": {}}},
}


def sick(case: dict[str, Any], *named: str, **over: Any) -> Params:
    """A study of that case with these hypotheses of one arm each."""
    told = {**dict.fromkeys(PARAMS.arms), **{slug: ARMS[slug] for slug in named or ["kl-penalty"]}}
    changes: dict[str, Any] = {"hypotheses": told, **over}
    cases = {"sick": {"faults": [], **case}}
    params = filled(changed(PARAMS, case="sick", cases=cases, **changes), Path("params.yaml"))
    check_references(params, Path("params.yaml"))
    return params


def unnamed(params: Params) -> dict[str, Run]:
    return {arm.arm: arm for arm in arms(params) if is_unnamed(arm.hypothesis)}


def test_a_stage_and_a_setting_that_no_hypothesis_is_about_are_mended_and_tried_alone() -> None:
    params = sick({"faults": ["empty-optimizer"], "training": {"clip": 0.9}})
    told = [
        (name, arm.design, arm.faults, arm.training.clip) for name, arm in unnamed(params).items()
    ]
    assert told == [
        ("unnamed-optimizer-step", "repair", (), 0.9),
        ("unnamed-training-clip", "repair", ("empty-optimizer",), 0.2),
        ("unnamed-optimizer-step-alone", "alone", ("empty-optimizer",), 0.2),
        ("unnamed-training-clip-alone", "alone", (), 0.9),
    ]


def test_rollouts_and_options_are_settings_too_and_what_the_control_lacks_is_taken_away() -> None:
    case: dict[str, Any] = {"rollouts": {"max_turns": 2, "max_new_tokens": 24}}
    found = unnamed(sick(case))  # as the environment has 24 tokens anyway
    assert set(found) == {"unnamed-rollouts-max-turns", "unnamed-rollouts-max-turns-alone"}
    assert found["unnamed-rollouts-max-turns"].rollouts == {"max_new_tokens": 24}
    assert found["unnamed-rollouts-max-turns-alone"].rollouts == {"max_turns": 2}
    program: dict[str, Any] = {"trainer": "command", "command": {"program": ["true"]}}
    found = unnamed(sick({"options": {"sync_every": 0}}, **program))
    assert found["unnamed-options-sync-every"].options == {}
    assert found["unnamed-options-sync-every-alone"].options == {"sync_every": 0}


def test_an_arm_of_a_cause_that_swaps_or_sets_it_is_enough() -> None:
    case = {"faults": ["empty-optimizer"], "training": {"learning_rate": 1e-5, "kl_beta": 0.2}}
    found = unnamed(sick(case, "optimizer-no-op"))
    assert {arm.hypothesis for arm in found.values()} == {"unnamed-training-kl-beta"}
    # a localiser says where, and never competes as a cause
    elsewhere = unnamed(sick(case, "library-functionality"))
    assert len({arm.hypothesis for arm in elsewhere.values()}) == 3


def test_a_study_that_tests_nothing_or_asks_for_none_has_none() -> None:
    case = {"faults": ["empty-optimizer"]}
    assert unnamed(sick(case, unnamed=False)) == {}
    assert unnamed(load_params(ROOT / "params.yaml", ROOT / "studies" / "smoke.yaml")) == {}
    assert unnamed(PARAMS) == {}


def test_an_arm_that_would_win_by_its_budget_or_mean_nothing_is_not_made() -> None:
    steps = {"steps": PARAMS.training.steps - 2}
    assert set(unnamed(sick({"training": steps}))) == {"unnamed-training-steps-alone"}
    adapter = {"lora_r": 8, "lora_alpha": 32}
    found = unnamed(sick({"training": adapter}))
    assert "unnamed-training-lora-r" not in found  # 32 and no adapter
    assert found["unnamed-training-lora-r-alone"].training.lora_r == 8


def test_an_arm_of_the_user_s_cannot_have_such_a_name() -> None:
    arm = {"unnamed-kl": {"training": {"kl_beta": 0.0}}}
    own = {**dict.fromkeys(PARAMS.arms), "kl-penalty": {"arms": arm}}
    with pytest.raises(InputError, match=r"arms\.unnamed-kl' is a reserved name, expected another"):
        sick({}, hypotheses=own)


def test_the_slug_of_a_stage_or_a_setting_tells_it_and_none_is_a_cause_s() -> None:
    assert [load_hypothesis(unnamed_slug(name)).part for name in STAGES] == [*STAGES]
    for name in TrainingSettings.__dataclass_fields__:
        hypothesis = load_hypothesis(unnamed_slug(name, "training"))
        assert (hypothesis.part, hypothesis.kind) == (f"training.{name}", "cause")
    assert unnamed_slug("Weird Key", "options") == "unnamed-options-weird-key"
    assert not any(map(is_unnamed, hypothesis_names()))


def test_a_resolved_study_plans_what_no_hypothesis_names_first() -> None:
    params = sick({"faults": ["empty-optimizer"]})
    study = resolve(params, ROOT)
    assert list(study.phases) == ["kl-penalty", "unnamed-optimizer-step"]
    assert study.phases["unnamed-optimizer-step"] == 1 < study.phases["kl-penalty"]
    [first, _] = planned(params, {}, 2, RATES, 10**12).hypotheses
    assert (first.hypothesis, first.trainings) == ("unnamed-optimizer-step", 0)
    looked = resolve(replace(params, design="sequential"), ROOT).looked
    # of a case that departs in one part alone, that part alone is the case, and mending it is the control
    assert looked.first().seeds["unnamed-optimizer-step-alone"] >= 2


# --- its verdict

# of two faults, what mends the one is the other alone
REWARDS = {
    "case": 0.1,
    "control": 0.9,
    "random-reward": 0.1,
    "gsm8k-control": 0.5,
    "gsm8k": 0.5,
    "attention-mask": 0.3,
    "attention-mask-alone": 0.7,
    "an-arm-with-a-name-that-goes-on-for-long": 0.1,
    "null": 0.1,
    "unnamed-loss-mask": 0.7,
    "unnamed-loss-mask-alone": 0.3,
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> MadeUp:
    made = MadeUp(tmp_path_factory.mktemp("study"), REWARDS, seeds=(0, 1, 2, 3), unnamed=True)
    made.tables()
    return made


def test_what_no_hypothesis_names_is_located_and_stands_first(study: MadeUp) -> None:
    tables = study.read()
    found = tables["verdicts"].set_index("hypothesis")
    assert next(iter(found.index)) == "unnamed-loss-mask"
    assert found.loc["unnamed-loss-mask", "status"] == "located_not_explained"
    assert found.loc["hidden-context", "status"] == "validated"
    said = answer(tables, REPORT_SETTINGS)
    assert said.causes == ("unnamed-loss-mask", "hidden-context")
    row = found.loc["unnamed-loss-mask"]
    assert said.sentences[0] == (
        f"Something in loss_mask that no hypothesis names costs {row['effect']:.2f} "
        f"[{row['ci_low']:.2f}, {row['ci_high']:.2f}] of held-out reward."
    )
    page = study.report()
    assert "Something in loss_mask that no hypothesis names costs" in page
    assert 'id="unnamed-loss-mask"' in page
    links = [page.index(f'<li><a href="#{slug}">') for slug in said.causes]
    assert links == sorted(links)


def test_what_costs_nothing_is_invalidated_and_stands_in_its_place(tmp_path: Path) -> None:
    attention = {"attention-mask": 0.9, "attention-mask-alone": 0.1}
    harmless = {**REWARDS, **attention, "unnamed-loss-mask": 0.1, "unnamed-loss-mask-alone": 0.9}
    verdicts = MadeUp(tmp_path, harmless, seeds=(0, 1, 2, 3), unnamed=True).tables()["verdicts"]
    assert verdicts.set_index("hypothesis").loc["unnamed-loss-mask", "status"] == "invalidated"
    assert list(verdicts["hypothesis"]) == sorted(verdicts["hypothesis"])


def test_what_deviates_in_another_s_trainer_and_no_hypothesis_is_about_is_one_line(
    study: MadeUp,
) -> None:
    agrees = {"segment": "rewards", "status": "agrees", "causes": []}
    named = {"segment": "model inputs", "status": "deviates", "causes": ["hidden-context"]}
    other = {"segment": "sampler", "status": "deviates", "causes": ["sampler-mismatch"]}
    line = "The check of the case finds that sampler deviates, which no hypothesis of this study is about"
    theirs, tables = {**REPORT_SETTINGS, "trainer": "trl"}, study.read()
    assert line in answer(tables, theirs, {"segments": [agrees, named, other]}).note
    assert line not in answer(tables, theirs, {"segments": [agrees, named]}).note
    # every stage of ours can be swapped
    assert line not in answer(tables, REPORT_SETTINGS, {"segments": [other]}).note
