"""What the probes of log-probabilities, loss and update measure, and what else than a planted fault they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlvr_debug.grpo.kl import KL_ESTIMATORS, kl_estimate
from rlvr_debug.grpo.policy import Policy
from rlvr_debug.probes import Subject
from rlvr_debug.probes.kl import kl_estimator, kl_gradient
from rlvr_debug.probes.sampler import sampler_ratio, weight_sync
from rlvr_debug.probes.update import gradient_size, micro_batch_invariance, weights_move
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import rollout
from tests.probe_subjects import (
    Build,
    draw,
    with_faults,
    with_rewards,
    with_settings,
    with_stage,
)


@pytest.fixture(scope="module")
def healthy(chat: Chat, talkative: Build) -> Subject:
    return draw(chat, talkative, 3)


# --- sampler-ratio


def test_other_weights_than_the_sampler_s_fail(healthy: Subject, talkative: Build) -> None:
    other = talkative(1)
    with torch.no_grad():
        for weight in (
            subject := replace(healthy, policy=Policy(other, None, other))
        ).policy.trained:
            weight += 0.02
    assert not sampler_ratio(subject).passed


def test_what_other_probes_look_at_does_not_trip_the_ratio(healthy: Subject) -> None:
    faults = ("attention-from-loss-mask", "prompt-without-tools", "eos-not-trained")
    assert sampler_ratio(with_faults(healthy, *faults)) == sampler_ratio(healthy)


def test_the_temperature_is_the_case_s_and_the_tails_are_measured(healthy: Subject) -> None:
    found = sampler_ratio(with_settings(healthy, temperature=0.5))  # sampled at 0.9
    assert not found.passed
    assert found.measured["outside_10_percent"] > 0.5
    assert found.measured["ratio_min"] < found.measured["ratio_p50"] < found.measured["ratio_max"]


# --- weight-sync


def test_the_sampler_has_the_model_s_weights_again_after_the_probe(healthy: Subject) -> None:
    def again() -> list[list[int]]:
        healthy.sampler.reset()
        rows = [current.row for current in healthy.rollouts]
        found = rollout(
            rows, healthy.environment, healthy.chat, healthy.sampler, temperature=0.9, seed=5
        )
        return [current.ids for current in found]

    before = again()
    weight_sync(healthy)
    weight_sync(with_faults(healthy, "stale-sampler"))
    assert again() == before


@pytest.mark.parametrize("left_out", ["lm_head.weight", "model.layers.1.self_attn.q_proj.bias"])
def test_a_sync_that_forgets_one_tensor_is_found(healthy: Subject, left_out: str) -> None:
    old = {name: weight.clone() for name, weight in healthy.model.state_dict().items()}

    def partial(policy: Policy, sampler: InProcessSampler) -> None:
        sampler.load({**policy.weights(), left_out: old[left_out]})

    found = weight_sync(with_stage(healthy, sync=partial))
    assert not found.passed
    assert found.measured["gap_to_old_weights"] > 1e-3  # for all that came through


# --- kl-estimator


def test_a_kl_that_is_reversed_scaled_or_another_estimator_fails(healthy: Subject) -> None:
    wrong: dict[str, Callable[[Tensor, Tensor, str], Tensor]] = {
        "reversed": lambda logprobs, reference, name: kl_estimate(reference, logprobs, name),
        "twice": lambda logprobs, reference, name: 2 * kl_estimate(logprobs, reference, name),
        "k2": lambda logprobs, reference, _: (logprobs - reference) ** 2 / 2,
        "k1 reversed": lambda logprobs, reference, _: reference - logprobs,
        "absolute": lambda logprobs, reference, _: (logprobs - reference).abs(),
        "nothing": lambda logprobs, reference, _: torch.zeros_like(logprobs),
        "not a number": lambda logprobs, reference, _: logprobs * float("nan"),
    }
    passed = [n for n, kl in wrong.items() if kl_estimator(with_stage(healthy, kl=kl)).passed]
    assert passed == []
    k1 = with_stage(healthy, kl=lambda logprobs, reference, _: logprobs - reference)
    assert kl_estimator(k1).passed  # unbiased too


@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_every_estimator_passes_under_its_own_name_and_twice_of_it_fails(
    healthy: Subject, estimator: str
) -> None:
    named = with_settings(healthy, kl_estimator=estimator)
    assert kl_estimator(named).passed
    twice = with_stage(named, kl=lambda p, q, name: 2 * kl_estimate(p, q, name))
    assert not kl_estimator(twice).passed


# --- kl-gradient

RIGHT = {("k2", "loss", False), ("k1", "reward", False), ("k1", "loss", True), ("k3", "loss", True)}
NEAR = {("k3", "loss", False), ("k2", "loss", True)}  # biased, and pass


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("place", ["loss", "reward"])
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_the_terms_whose_gradient_is_the_kl_s_pass(
    chat: Chat, talkative: Build, estimator: str, place: str, weighted: bool
) -> None:
    term = (estimator, place, weighted and place == "loss")
    subject = with_settings(
        draw(chat, talkative, 0),
        kl_estimator=estimator,
        kl_place=place,
        use_bias_correction_kl=weighted,
    )
    found = kl_gradient(subject)
    assert found.passed == (term in RIGHT | NEAR)
    exact = found.measured["relative_error_near"] < 1e-9
    assert exact == (term in RIGHT)
    assert kl_gradient(with_faults(subject, "kl-subtracted")).passed is False
    assert kl_gradient(with_settings(subject, kl_beta=0.0)).passed


def test_k3_in_the_loss_is_biased_and_the_more_so_the_farther(healthy: Subject) -> None:
    found = kl_gradient(healthy).measured
    assert 0.99 < found["cosine_near"] < 1
    assert found["cosine_far"] < found["cosine_near"]
    assert found["relative_error_far"] > found["relative_error_near"] > 0.01
    faulty = kl_gradient(with_faults(healthy, "kl-subtracted")).measured
    assert faulty["cosine_near"] == -found["cosine_near"]


@pytest.mark.parametrize(("times", "passed"), [(1.3, True), (2.0, False)])
def test_a_term_that_pulls_in_the_right_direction_but_too_hard_fails(
    healthy: Subject, times: float, passed: bool
) -> None:
    def harder(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
        return times * kl_estimate(logprobs, reference, estimator)

    found = kl_gradient(with_stage(healthy, kl=harder))
    assert found.measured["cosine_near"] > 0.99
    assert found.passed == passed


# --- micro-batch-invariance


def test_bnpo_is_held_to_the_case_s_own_cut_alone(healthy: Subject) -> None:
    once = micro_batch_invariance(healthy)
    assert once.passed
    assert once.measured.keys() == {"micro_batches", "gradient_norm_of_the_whole"}
    cut = with_settings(healthy, gradient_accumulation_steps=4)
    assert not micro_batch_invariance(cut).passed  # by definition
    assert micro_batch_invariance(with_settings(cut, aggregation="dapo")).passed


@pytest.mark.parametrize("aggregation", ["grpo", "dr_grpo", "dapo"])
def test_the_gradient_is_the_same_however_the_batch_is_cut(
    healthy: Subject, aggregation: str
) -> None:
    subject = with_settings(healthy, aggregation=aggregation, gradient_accumulation_steps=5)
    found = micro_batch_invariance(subject)
    assert found.passed
    assert max(found.measured[f"relative_error_in_{cut}"] for cut in (2, 5)) < 1e-5
    faulty = micro_batch_invariance(with_faults(subject, "per-micro-batch-denominator"))
    assert not faulty.passed


# --- gradient-size


def test_an_ordinary_clip_is_reported_and_passes(healthy: Subject) -> None:
    norm = gradient_size(healthy).measured["gradient_norm"]
    found = gradient_size(with_settings(healthy, max_grad_norm=norm / 3))
    assert found.passed
    assert found.measured["share_clipped_away"] == pytest.approx(2 / 3, rel=1e-4)
    assert (
        gradient_size(with_settings(healthy, max_grad_norm=norm * 3)).measured["share_clipped_away"]
        == 0
    )


def test_a_loss_larger_than_its_advantages_fails(healthy: Subject) -> None:
    def sums(values: Tensor, mask: Tensor, totals: object, aggregation: str) -> Tensor:
        return (values * mask).sum()  # over tokens, and divided by nothing

    assert not gradient_size(with_stage(healthy, aggregate=sums)).passed


def test_a_ratio_of_one_token_is_found_where_its_advantage_hides_it(healthy: Subject) -> None:
    nothing = with_rewards(healthy, 0.0)
    found = gradient_size(with_faults(nothing, "ratio-blow-up"))
    assert not found.passed
    assert found.measured["largest_deviation_of_the_ratio_from_1"] > 1e8


# --- weights-move


def test_no_learning_rate_fails_and_a_warm_up_does_not(healthy: Subject) -> None:
    assert weights_move(with_settings(healthy, warmup_steps=100)).passed
    found = weights_move(with_settings(healthy, learning_rate=0.0))
    assert not found.passed
    assert found.measured["share_moved"] == 0


@pytest.mark.parametrize("wrong", ["twice", "backwards", "one tensor"])
def test_an_optimizer_that_does_something_else_fails(healthy: Subject, wrong: str) -> None:
    def step(optimizer: torch.optim.Optimizer) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in weights]
        optimizer.step()
        with torch.no_grad():
            for i, (weight, old) in enumerate(zip(weights, before, strict=True)):
                change = weight - old
                if wrong == "one tensor":
                    weight.copy_(weight if i == 0 else old)
                else:
                    weight.copy_(old + change * (2 if wrong == "twice" else -1))

    assert not weights_move(with_stage(healthy, optimizer_step=step)).passed


def test_frozen_weights_are_weights_that_did_not_move(chat: Chat, talkative: Build) -> None:
    subject = draw(chat, talkative, 0)
    for parameter in subject.model.model.layers.parameters():
        parameter.requires_grad = False
    found = weights_move(subject)
    assert (
        found.measured["share_moved"]
        < weights_move(draw(chat, talkative, 0)).measured["share_moved"]
    )
