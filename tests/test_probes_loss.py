"""The probes of a whole loss, and of the ratio of what is trained: what they find that others cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from lab.releases.loss_gradient import loss_gradient
from lab.releases.trained_ratio import trained_ratio
from rlvr_debug.grpo.loss import policy_loss
from rlvr_debug.probes import Subject
from rlvr_debug.probes.sampler import sampler_ratio
from rlvr_debug.probes.update import gradient_size, micro_batch_invariance
from rlvr_debug.sampling.chat import Chat
from tests.probe_subjects import Build, draw, with_faults, with_settings


@pytest.fixture(scope="module")
def healthy(chat: Chat, talkative: Build) -> Subject:
    return draw(chat, talkative, 3)


def test_the_right_loss_has_the_right_gradient(healthy: Subject) -> None:
    found = loss_gradient(healthy)
    assert found.passed
    assert set(found.measured) == {
        f"error_{aggregation}_beta_{beta}"
        for aggregation in ("bnpo", "dr_grpo", "grpo")
        for beta in ("0", "0.04")
    }


@pytest.mark.parametrize("aggregation", ["bnpo", "dapo"])
def test_a_wrong_stage_is_seen_in_the_loss_gradient(healthy: Subject, aggregation: str) -> None:
    subject = with_settings(healthy, aggregation=aggregation)
    found = loss_gradient(with_faults(subject, "kl-subtracted"))
    wrong = {name for name, error in found.measured.items() if error > 1e-6}
    assert wrong == {name for name in found.measured if name.endswith("_0.04")}
    assert not found.passed
    assert not loss_gradient(with_faults(subject, "ratio-blow-up")).passed


def test_a_loss_of_its_own_is_the_one_that_is_probed(healthy: Subject) -> None:
    def doubled(*given: Any) -> Tensor:
        return 2 * policy_loss(*given)

    def of_one_policy(logprobs: Tensor, targets: Any, *others: Any) -> Tensor:
        return policy_loss(logprobs, replace(targets, old=None), *others)

    def per_micro_batch(logprobs: Tensor, targets: Any, totals: Any, *others: Any) -> Tensor:
        own = replace(totals, sequences=len(logprobs))
        return policy_loss(logprobs, targets, own, *others)

    assert loss_gradient(replace(healthy, loss=doubled)).measured == pytest.approx(
        dict.fromkeys(loss_gradient(healthy).measured, 1.0)
    )
    assert not loss_gradient(replace(healthy, loss=of_one_policy)).passed
    cut = with_settings(replace(healthy, loss=per_micro_batch), aggregation="grpo")
    assert not micro_batch_invariance(cut).passed
    asked = [
        gradient_size(subject).measured["sum_of_logprob_gradients"]
        for subject in (healthy, replace(healthy, loss=doubled))
    ]
    assert asked[1] == pytest.approx(2 * asked[0])


@pytest.mark.parametrize(
    "fault", ["attention-from-loss-mask", "prompt-without-tools", "tool-turn-rendered-alone"]
)
def test_what_hides_or_changes_the_context_is_seen_in_the_ratio_of_what_is_trained(
    healthy: Subject, fault: str
) -> None:
    faulty = with_faults(healthy, fault)
    assert sampler_ratio(faulty).passed
    assert trained_ratio(healthy).passed
    assert not trained_ratio(faulty).passed


def test_a_batch_of_its_own_is_the_one_that_is_probed(healthy: Subject) -> None:
    blind = with_faults(healthy, "attention-from-loss-mask")

    def build(rollouts: Any, _: Any, *others: Any, **named: Any) -> Any:
        return healthy.build(rollouts, blind.stages, *others, **named)

    assert not trained_ratio(replace(healthy, build=build)).passed
