"""Whoever watches a training is told what it does, and changes nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from rlvr_debug.grpo.policy import Policy
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import (
    Observer,
    Step,
    StepRecord,
    TrainerState,
    Training,
    TrainingResult,
)
from rlvr_debug.metrics.observer import RunObserver
from rlvr_debug.metrics.settings import DiagnosticSettings
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from tests.small import ROWS, SETTINGS, small_environment


class Noted(Observer):
    """Notes what it is told, with a weight at that time."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.weights: list[float] = []

    def begin_step(self, state: TrainerState) -> None:
        self.told.append(f"begin {state.step}")

    def end_stage(self, stage: str) -> None:
        self.told.append(stage)

    def before_optimizer_step(self, policy: Policy, optimizer: Optimizer) -> None:
        assert all(weight.grad is not None for weight in policy.trained)
        self.told.append("before")
        self.weights.append(float(policy.trained[0].detach().sum()))

    def after_optimizer_step(self, policy: Policy) -> None:
        self.told.append("after")
        self.weights.append(float(policy.trained[0].detach().sum()))

    def end_step(self, step: Step) -> StepRecord:
        self.told.append(f"end {step.number}")
        rollouts = [{"step": step.number, "rollouts": len(step.rollouts)}]
        return StepRecord({"mine": step.number}, {"sampling": 1.0}, rollouts)


def trained(
    chat: Chat, talkative: Callable[[int], Any], observer: Observer | None
) -> TrainingResult:
    model = talkative(0)
    sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
    settings = replace(SETTINGS, kl_beta=0.0, num_iterations=2)
    training = Training(chat, small_environment(), ROWS, settings, seed=0)
    return train(training, model, None, sampler, observer=observer)


def test_an_observer_is_told_each_stage_in_its_order_and_its_records_are_kept(
    chat: Chat, talkative: Callable[[int], Any]
) -> None:
    noted = Noted()
    result = trained(chat, talkative, noted)
    stages = ["sampling", "batch", "logprobs", *["before", "after"] * 2, "update", "sync"]
    assert noted.told == ["begin 0", *stages, "end 1", "begin 1", *stages, "end 2"]
    before, after = noted.weights[::2], noted.weights[1::2]
    assert before[1:] == after[:-1]  # nothing but the optimizer moves the weights
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert result.metrics == [{"mine": 1}, {"mine": 2}]
    assert result.seconds == [{"sampling": 1.0}] * 2
    size = SETTINGS.prompts_per_step * SETTINGS.group_size
    assert result.rollouts == [{"step": step, "rollouts": size} for step in (1, 2)]


def test_a_training_that_nobody_watches_ends_with_the_same_weights(
    chat: Chat, talkative: Callable[[int], Any]
) -> None:
    alone = trained(chat, talkative, None)
    watched = trained(chat, talkative, RunObserver(DiagnosticSettings(1, 100)))
    assert alone.metrics == [{"step": 1}, {"step": 2}]
    assert not alone.rollouts
    assert len(watched.metrics[0]) > 50
    assert all(torch.equal(alone.weights[name], watched.weights[name]) for name in alone.weights)
