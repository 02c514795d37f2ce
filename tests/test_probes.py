from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr_debug.config import ROOT, load_params
from rlvr_debug.data.synthetic import synthetic_gsm8k, synthetic_musique
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.faults import faulty_stages
from rlvr_debug.grpo.advantages import SCALINGS, advantages
from rlvr_debug.grpo.kl import KL_ESTIMATORS, kl_estimate
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.probes import PROBES, Measurement, Subject
from rlvr_debug.probes.advantage_scale import advantage_scale
from rlvr_debug.probes.context_sensitivity import context_sensitivity
from rlvr_debug.probes.kl_estimator import kl_estimator
from rlvr_debug.probes.sequence_diff import sequence_diff
from rlvr_debug.probes.weight_sync import weight_sync
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.qwen2 import Qwen2Sampler
from rlvr_debug.sampling.rollouts import rollout

SETTINGS = TrainingSettings(
    **{
        **load_params(ROOT / "params.yaml")["training"],
        "steps": 1,
        "prompts_per_step": 3,
        "group_size": 4,
        "learning_rate": 1e-3,
        "temperature": 0.9,
    }
)
MODELS = (0, 2, 4)


def subject_of(
    chat: Chat, model: Any, environment: Environment, rows: list[Any], seed: int
) -> Subject:
    sampler = Qwen2Sampler(model.config.to_dict(), model.state_dict(), chat.eos_id)
    rollouts = rollout(
        [row for row in rows for _ in range(SETTINGS.group_size)],
        environment,
        chat,
        sampler,
        temperature=SETTINGS.temperature,
        seed=seed,
    )
    return Subject(model, sampler, Stages(), SETTINGS, environment, chat, rollouts)


@pytest.fixture(scope="module", params=MODELS)
def healthy(request: pytest.FixtureRequest, chat: Chat, talkative: Callable[[int], Any]) -> Subject:
    seed = request.param
    weights = {"exact_match": 1, "f1": 1, "recall": 1, "precision": 1, "citation": 1, "format": 1}
    environment = build_environment(
        "musique",
        {
            "retrieval": "golden",
            "top_n": 2,
            "max_turns": 3,
            "max_new_tokens": 8,
            "weights": weights,
        },
    )
    rows = list(synthetic_musique(3, hops={2: 1}, paragraphs=4, same_relation=0, seed=seed))
    subject = subject_of(chat, talkative(seed), environment, rows, seed)
    assert any(len(r.segments) > 2 for r in subject.rollouts)
    return subject


def with_faults(subject: Subject, *faults: str) -> Subject:
    return replace(subject, stages=faulty_stages(faults))


def with_stage(subject: Subject, **stages: Any) -> Subject:
    return replace(subject, stages=replace(Stages(), **stages))


def with_rewards(subject: Subject, *rewards: float) -> Subject:
    """The same rollouts, of which every group earned this."""
    rollouts = [
        replace(current, reward=rewards[i % len(rewards)])
        for i, current in enumerate(subject.rollouts)
    ]
    return replace(subject, rollouts=rollouts)


@pytest.mark.parametrize("probe", PROBES)
def test_every_probe_passes_on_the_healthy_trainer_and_says_the_same_again(
    healthy: Subject, probe: Callable[[Subject], Measurement]
) -> None:
    found = probe(healthy)
    assert found.passed
    assert not any(map(math.isnan, found.measured.values()))  # which would measure nothing
    weights = {name: w.clone() for name, w in healthy.model.state_dict().items()}
    assert asdict(probe(healthy)) == asdict(found)
    assert all(torch.equal(w, weights[name]) for name, w in healthy.model.state_dict().items())
    assert all(parameter.grad is None for parameter in healthy.model.parameters())


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        ("attention-from-loss-mask", {context_sensitivity}),
        ("prompt-without-tools", {sequence_diff}),
        ("tool-turn-rendered-alone", {sequence_diff}),
        ("stale-sampler", {weight_sync}),
    ],
)
def test_a_planted_fault_fails_its_own_probe_and_no_other(
    healthy: Subject, fault: str, failing: set[Callable[[Subject], Measurement]]
) -> None:
    subject = with_faults(healthy, fault)
    assert {probe for probe in PROBES if not probe(subject).passed} == failing


def test_the_probes_find_every_fault_of_a_case_with_several(healthy: Subject) -> None:
    faults = ("attention-from-loss-mask", "prompt-without-tools", "stale-sampler")
    subject = with_faults(healthy, *faults)
    failed = {probe for probe in PROBES if not probe(subject).passed}
    assert failed == {context_sensitivity, sequence_diff, weight_sync}


# --- context-sensitivity


def test_a_reply_s_first_token_does_not_make_a_blind_policy_seem_to_read(healthy: Subject) -> None:
    # it is predicted from the last token of the prompt, which no attention mask hides from itself
    found = context_sensitivity(with_faults(healthy, "attention-from-loss-mask"))
    assert found.measured == {"mean_change_prompt": 0, "mean_change_tool_results": 0}
    seen = context_sensitivity(healthy)
    assert min(seen.measured.values()) > 1e-2


@pytest.mark.parametrize("hidden", ["prompt", "tool_results"])
def test_hiding_the_prompt_alone_or_the_tool_results_alone_is_found(
    healthy: Subject, hidden: str
) -> None:
    def mask(sampled: Tensor, real: Tensor) -> Tensor:
        in_prompt = sampled.cumsum(1) == 0
        return real & (sampled | (in_prompt if hidden == "tool_results" else ~in_prompt))

    found = context_sensitivity(with_stage(healthy, attention_mask=mask))
    assert not found.passed
    blind = [name for name, change in found.measured.items() if change < 1e-4]
    assert blind == [f"mean_change_{hidden}"]


def test_without_tools_the_prompt_alone_is_measured(
    chat: Chat, talkative: Callable[[int], Any]
) -> None:
    environment = build_environment("gsm8k", {"max_new_tokens": 8, "weights": {"correct": 1.0}})
    rows = list(synthetic_gsm8k(3, steps={1: 1}, seed=0))
    subject = subject_of(chat, talkative(0), environment, rows, 0)
    assert context_sensitivity(subject).measured.keys() == {"mean_change_prompt"}
    for probe in PROBES:
        assert probe(subject).passed
    assert not context_sensitivity(with_faults(subject, "attention-from-loss-mask")).passed


def test_a_loss_that_counts_nothing_does_not_pass_for_one_that_reads(healthy: Subject) -> None:
    nothing = with_stage(healthy, loss_mask=lambda sampled, real: torch.zeros_like(sampled))
    assert not context_sensitivity(nothing).passed


# --- sequence-diff


def test_the_tokens_that_a_fault_loses_are_counted(healthy: Subject) -> None:
    chat, environment = healthy.chat, healthy.environment
    found = sequence_diff(with_faults(healthy, "prompt-without-tools"))
    messages = environment.messages(healthy.rollouts[0].row)
    lost = len(chat.prompt(messages, environment.tools)) - len(chat.prompt(messages, []))
    assert found.measured["share_of_rollouts"] == 1
    assert found.measured["tokens_missing"] - found.measured["tokens_added"] == lost

    found = sequence_diff(with_faults(healthy, "tool-turn-rendered-alone"))
    tools = [sum(s.role == "tool" for s in r.segments) for r in healthy.rollouts]
    lost = len(chat.encode("\n")) + len(chat.encode("<|im_start|>assistant\n"))
    assert found.measured["share_of_rollouts"] == sum(map(bool, tools)) / len(tools)
    assert found.measured["tokens_missing"] == lost * sum(tools) / len(tools)
    assert found.measured["tokens_added"] == 0


def test_one_token_in_one_rollout_is_enough(healthy: Subject) -> None:
    first = healthy.rollouts[0]
    subject = with_stage(
        healthy,
        trained_prompt=lambda current, segment, env, chat: (
            [*segment.ids[:-1], 0] if current is first else segment.ids
        ),
    )
    found = sequence_diff(subject)
    assert not found.passed
    assert found.measured["share_of_rollouts"] == 1 / len(healthy.rollouts)


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

    def partial(weights: dict[str, Tensor], sampler: Qwen2Sampler) -> None:
        sampler.load({**weights, left_out: old[left_out]})

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
    named = replace(healthy, settings=replace(SETTINGS, kl_estimator=estimator))
    assert kl_estimator(named).passed
    twice = with_stage(named, kl=lambda p, q, name: 2 * kl_estimate(p, q, name))
    assert not kl_estimator(twice).passed


# --- advantage-scale


def times_25(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
    return 25 * advantages(rewards, scaling, epsilon)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rewards", [None, (0.0,), (1.0, 0.0, 0.0, 0.0)])
def test_advantages_times_25_fail_whatever_the_rollouts_earned(
    healthy: Subject, scaling: str, rewards: tuple[float, ...] | None
) -> None:
    subject = replace(healthy, settings=replace(SETTINGS, scale_rewards=scaling))
    if rewards is not None:
        subject = with_rewards(subject, *rewards)
    assert advantage_scale(subject).passed
    assert not advantage_scale(replace(subject, stages=Stages(advantages=times_25))).passed


def test_a_stage_that_breaks_only_on_the_rewards_at_hand_fails(healthy: Subject) -> None:
    def no_baseline_in_between(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        return advantages(rewards, scaling, epsilon) + 5 * (rewards == 0.75)

    subject = with_rewards(healthy, 0.75, 0.0, 0.25, 0.0)
    assert advantage_scale(subject).passed
    broken = with_stage(subject, advantages=no_baseline_in_between)
    assert not advantage_scale(broken).passed


def test_a_winner_among_many_equal_groups_is_no_bug_of_batch_scaling(healthy: Subject) -> None:
    subject = replace(
        with_rewards(healthy, 1.0, *[0.0] * 11),
        settings=replace(SETTINGS, scale_rewards="batch"),
    )
    found = advantage_scale(subject)
    assert found.measured["largest_advantage"] > 1.5  # above the bound of a group of four
    assert found.passed


def test_groups_of_nearly_equal_rewards_that_dominate_the_gradient_fail(healthy: Subject) -> None:
    subject = with_rewards(healthy, 0.5, 0.501, 0.499, 0.5)
    found = advantage_scale(subject)
    assert not found.passed
    assert found.measured["gradient_share_of_small_spread"] == 1
    assert found.measured["groups_of_small_spread"] == 1
    # beside one group that differs, they weigh next to nothing where nothing is scaled
    rewards = [1.0, 0.0, 0.0, 1.0, *[0.5, 0.501, 0.499, 0.5] * 2]
    subject = with_rewards(healthy, *rewards)
    scaled = advantage_scale(subject)
    plain = advantage_scale(replace(subject, settings=replace(SETTINGS, scale_rewards="none")))
    assert plain.passed
    assert plain.measured["gradient_share_of_small_spread"] < 1e-3
    assert scaled.measured["gradient_share_of_small_spread"] > 0.1
    assert scaled.measured["groups_of_small_spread"] == pytest.approx(2 / 3)
