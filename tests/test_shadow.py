"""The stages of another run, computed beside those of one that is trained: they say whether it is the same run."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr_debug.causes import stages_with, variant_names
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.grpo.shadow import Shadow
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.training import TrainingResult
from rlvr_debug.sampling.chat import Chat
from tests.small import Train, small_training

HEALTHY = Stages()
SETTINGS: dict[str, Any] = {
    "steps": 2,
    "prompts_per_step": 2,
    "num_iterations": 2,
    "gradient_accumulation_steps": 2,
    "importance_sampling_cap": 2.0,
    "warmup_steps": 3,
}
COMPARED = sorted({*STAGES} - {"logprobs", "sync"})
IN_LOSS = ["importance_ratio", "clipped_objective", "importance_weights", "kl", "aggregate"]
# those of the loss are compared one at a time
TOGETHER = [sorted({*COMPARED} - {*IN_LOSS}), *([stage] for stage in IN_LOSS)]


@pytest.fixture(scope="module")
def trained(chat: Chat, talkative: Callable[[int], Any]) -> Train:
    def run(stages: Stages = HEALTHY, other: Stages | None = None, **changes: Any) -> Any:
        return small_training(chat, talkative)(stages, other=other, **{**SETTINGS, **changes})

    return run


@pytest.fixture(scope="module")
def healthy(trained: Train) -> TrainingResult:
    return trained()


def is_same(one: TrainingResult, other: TrainingResult) -> bool:
    rows = repr(one.metrics) == repr(other.metrics)
    return rows and all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


# --- another implementation of each stage, that does something else from one of its calls on


def changed(stage: str, value: Any) -> Any:
    """Return something else than a stage did."""
    if stage == "max_new_tokens":
        return value - 1
    if stage in ("trained_prompt", "trained_tool_turn"):
        return value[1:]
    if stage == "score":
        return {name: 1.0 - part for name, part in value.items()}
    if stage == "saved_weights":
        return {name: weight + 1 for name, weight in value.items()}
    return (
        value & (torch.arange(value.shape[-1]) % 2 > 0) if not value.is_floating_point() else -value
    )


class From:
    """The healthy implementation up to a call, and another one from then on."""

    def __init__(self, stage: str, call: int) -> None:
        self._stage, self._left = stage, call

    def __call__(self, *given: Any) -> Any:
        self._left -= 1
        if self._stage == "optimizer_step":
            # steps from then on are left out
            return HEALTHY.optimizer_step(*given) if self._left > 0 else None
        found = getattr(HEALTHY, self._stage)(*given)
        return found if self._left > 0 else changed(self._stage, found)


def with_all(stages: Sequence[str], implementation: Callable[[str], Any]) -> Stages:
    return replace(HEALTHY, **{stage: implementation(stage) for stage in stages})


@pytest.mark.parametrize("stage", COMPARED)
def test_runs_are_the_same_up_to_the_step_in_which_they_are_said_to_part(
    stage: str, trained: Train, healthy: TrainingResult
) -> None:
    call = {"max_new_tokens": 2, "optimizer_step": 3, "assign": 2, "score": 9}.get(stage, 1)
    seen = trained(HEALTHY, HEALTHY.with_fault(stage, From(stage, call)))
    real = trained(HEALTHY.with_fault(stage, From(stage, call)))
    assert is_same(seen, healthy)
    alike = seen.parted[stage] - 1
    assert repr(real.metrics[:alike]) == repr(healthy.metrics[:alike])


@pytest.mark.parametrize("stages", TOGETHER)
def test_what_comes_to_the_same_in_all_steps_does_not_part(
    stages: Sequence[str], trained: Train
) -> None:
    assert trained(HEALTHY, with_all(stages, lambda stage: From(stage, 10**6))).parted == {}


def test_a_stage_that_acts_late_parts_then_and_no_sooner(
    trained: Train, healthy: TrainingResult
) -> None:
    """Two updates a step, of which those of step 40 are left out; the variant counts its calls."""
    small = {"steps": 42, "prompts_per_step": 1, "group_size": 2, "gradient_accumulation_steps": 1}
    other = HEALTHY.with_fault("optimizer_step", From("optimizer_step", 79))
    assert trained(HEALTHY, other, **small).parted == {"optimizer_step": 40}


# --- what makes a proof of it


def half_as_steep(stage: str) -> Callable[..., Any]:
    """The same value, and half of the gradient."""

    def implementation(*given: Any) -> Any:
        found: Tensor = getattr(HEALTHY, stage)(*given)
        return found.detach() + 0.5 * (found - found.detach())

    return implementation


@pytest.mark.parametrize("stage", ["importance_ratio", "clipped_objective", "kl", "aggregate"])
def test_the_same_values_with_another_gradient_part(stage: str, trained: Train) -> None:
    other = HEALTHY.with_fault(stage, half_as_steep(stage))
    # the first update has a rate of 0
    assert {*trained(HEALTHY, other).parted} == {stage}


def test_a_loss_that_no_policy_moves_is_trained_as_it_is_and_parts(trained: Train) -> None:
    """The gradient of such a loss is asked for beside it; that there is none ended the training."""

    def cut_off(*given: Any) -> Tensor:
        return HEALTHY.aggregate(*given).detach() * torch.ones((), requires_grad=True)

    own = HEALTHY.with_fault("aggregate", cut_off)
    assert {*trained(own, HEALTHY).parted} == {"aggregate"}


def test_a_kl_of_the_reward_is_compared_too(trained: Train) -> None:
    other = stages_with(["kl-subtracted"])
    assert trained(HEALTHY, other, kl_place="reward").parted["kl"] <= 2
    assert trained(HEALTHY, other, kl_beta=0.0).parted == {}


def test_what_would_cost_a_pass_or_copies_of_the_model_is_not_compared() -> None:
    others: dict[str, Any] = {name: (lambda *given: None) for name in STAGES}
    # nor several stages of the loss: none of them alone shows what all do
    assert {*Shadow(HEALTHY, Stages(**others)).compared} == {*COMPARED} - {*IN_LOSS}
    for stage in IN_LOSS:
        assert Shadow(HEALTHY, HEALTHY.with_fault(stage, others[stage])).compared == [stage]
    assert Shadow(HEALTHY, HEALTHY).compared == []


# --- nothing of the run changes


def test_a_run_is_the_same_to_the_byte_with_and_without_the_stages_of_a_sick_one(
    trained: Train, healthy: TrainingResult
) -> None:
    assert is_same(trained(HEALTHY, stages_with(variant_names())), healthy)


def test_a_sick_run_is_the_same_to_the_byte_beside_a_healthy_one(trained: Train) -> None:
    faults = ["eos-not-trained", "tool-output-scored", "empty-optimizer", "kl-reversed"]
    sick = stages_with(faults)
    assert is_same(trained(sick, HEALTHY), trained(sick))


def spoiled(*given: Any) -> Any:
    for value in given:
        if isinstance(value, Tensor):
            value.zero_()
        for name in ("parts", "weights"):
            if isinstance(getattr(value, name, None), dict):
                setattr(value, name, {})
        if hasattr(value, "max_new_tokens"):
            value.max_new_tokens = 1
    random.random()
    torch.rand(1)
    raise ValueError("no stage")


@pytest.mark.parametrize("stages", TOGETHER)
def test_a_stage_that_spoils_what_it_is_given_parts_and_spoils_no_run(
    stages: Sequence[str], trained: Train, healthy: TrainingResult
) -> None:
    drawn = []
    for other in (None, with_all(stages, lambda stage: spoiled)):
        random.seed(0)
        torch.manual_seed(0)
        found = trained(HEALTHY, other)
        drawn.append((random.random(), float(torch.rand(1))))
    assert drawn[0] == drawn[1]
    assert is_same(found, healthy)
    assert {*found.parted} == {*stages}


def test_a_stage_that_draws_random_numbers_parts_though_it_comes_to_the_same(
    trained: Train,
) -> None:
    def drawing(*given: Any) -> Any:
        torch.rand(1)
        return HEALTHY.assign(*given)

    assert trained(HEALTHY, HEALTHY.with_fault("assign", drawing), steps=1).parted == {"assign": 1}
