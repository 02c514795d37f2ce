from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lab.model.warmup import predicting_only
from rlvr_debug.causes import stage_of, stages_with, variant_names
from rlvr_debug.checkout import ROOT
from rlvr_debug.environments import build_environment
from rlvr_debug.environments.base import Environment
from rlvr_debug.environments.musique.rows import MuSiQueRow
from rlvr_debug.environments.musique.synthetic import synthetic_musique
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.loss import Targets, policy_loss
from rlvr_debug.grpo.objective import AGGREGATIONS, SCALINGS, Totals, advantages, kl_estimate
from rlvr_debug.grpo.sequences import Batch, build_batch
from rlvr_debug.grpo.settings import STAGES
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import train
from rlvr_debug.grpo.training import Training, TrainingResult
from rlvr_debug.metrics.observer import RunObserver
from rlvr_debug.metrics.settings import NO_ROLLOUTS
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import Rollout, rollout
from rlvr_debug.study.params import load_params

RandomModel = Callable[..., Any]
Talkative = Callable[[int], Any]
VOCABULARY = 40
SETTINGS = replace(
    load_params(ROOT / "params.yaml").training,
    steps=2,
    prompts_per_step=3,
    group_size=4,
    learning_rate=3e-3,
)


@pytest.fixture(scope="module")
def environment() -> Environment:
    weights = {"exact_match": 1, "f1": 1, "recall": 1, "precision": 1, "citation": 1, "format": 1}
    # golden: any well-formed call earns what retrieval can earn
    return build_environment(
        "musique",
        {
            "retrieval": "golden",
            "top_n": 2,
            "max_turns": 3,
            "max_new_tokens": 8,
            "weights": weights,
        },
    )


@pytest.fixture(scope="module")
def rows() -> list[MuSiQueRow]:
    return list(synthetic_musique(8, hops={2: 1}, paragraphs=4, same_relation=0, seed=0))


def sampler_of(model: Any, chat: Chat) -> InProcessSampler:
    return InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)


@pytest.fixture(scope="module")
def rollouts(
    chat: Chat, talkative: Talkative, environment: Environment, rows: list[MuSiQueRow]
) -> list[Rollout]:
    """Some with several turns and some with one."""
    sampler = sampler_of(talkative(0), chat)
    found = rollout(rows, environment, chat, sampler, temperature=1.0, seed=0)
    assert {len(r.segments) for r in found} >= {2, 4}
    return found


# --- log-probabilities


def ragged(seed: int, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """ids, real and sampled, [count, width]: random, right-padded, in several runs of each role."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (count, width), generator=generator)
    lengths = torch.randint(2, width + 1, (count, 1), generator=generator)
    lengths[0] = width
    real = torch.arange(width) < lengths
    role = torch.rand(count, width, generator=generator).cumsum(1).long() % 2
    return ids, real, real & (role == 1)


def full_logprobs(model: Any, ids: Tensor, attention: Tensor, temperature: float) -> Tensor:
    """log p of each token after those before it, [B, T]; 0 for the first."""
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits
    values = (logits.float() / temperature).log_softmax(-1)[:, :-1]
    chosen = values.gather(2, ids[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros(len(ids), 1), chosen], 1)


@pytest.mark.parametrize("hidden_context", [False, True])
@given(
    st.integers(0, 1000),
    st.integers(1, 40),
    st.integers(2, 24),
    st.sampled_from([0.5, 1.0, 2.0]),
)
@settings(max_examples=15)
def test_log_probabilities_and_their_gradient_are_those_of_the_whole_forward_pass(
    random_model: RandomModel,
    hidden_context: bool,
    seed: int,
    count: int,
    width: int,
    temperature: float,
) -> None:
    model = random_model(seed)
    ids, real, wanted = ragged(seed, count, width)
    wanted[-1] = False  # a sequence of which nothing is wanted
    attention = wanted if hidden_context else real
    found = token_logprobs(model, ids, attention, wanted, temperature)
    expected = full_logprobs(model, ids, attention, temperature) * wanted
    assert found.shape == ids.shape
    assert torch.allclose(found, expected, rtol=0, atol=1e-5)
    assert not found[~wanted].any()
    assert not found[:, 0].any()
    if wanted[:, 1:].any():
        weight = torch.linspace(-1, 1, ids.numel()).view(ids.shape)
        given, right = (
            torch.cat(
                [g.flatten() for g in torch.autograd.grad((x * weight).sum(), model.parameters())]
            )
            for x in (found, expected)
        )
        assert float((given - right).norm()) <= 1e-5 * float(right.norm()) + 1e-7


def test_nothing_wanted_is_no_error_and_no_log_probability(random_model: RandomModel) -> None:
    ids, real, wanted = ragged(0, 3, 6)
    assert not token_logprobs(random_model(0), ids, real, torch.zeros_like(wanted)).any()
    first = torch.zeros_like(wanted)
    first[:, 0] = True  # nothing comes before it that could predict it
    assert not token_logprobs(random_model(0), ids, real, first).any()
    assert first[:, 0].all()  # the caller's mask is left as it was


def test_tokens_outside_the_vocabulary_take_no_probability(random_model: RandomModel) -> None:
    model = random_model(0)
    ids, real, wanted = ragged(0, 5, 9)
    only = torch.zeros(VOCABULARY, dtype=torch.bool)
    only[ids[wanted]] = True
    only[:4] = True
    assert not only.all()
    with predicting_only(model, only):
        found = token_logprobs(model, ids, real, wanted)
    logits = model(input_ids=ids, attention_mask=real).logits[:, :-1]
    logits[..., ~only] = float("-inf")
    expected = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    assert torch.allclose(found[:, 1:], expected.where(wanted[:, 1:], 0.0), rtol=0, atol=1e-5)
    assert found.sum().item() > token_logprobs(model, ids, real, wanted).sum().item()


# --- advantages

# equal rewards, nearly equal ones and any others: in [0, 1], as all rewards are
rewards = st.sampled_from([0.0, 0.1, 0.3, 1.0, 0.3000001]) | st.floats(0, 1, width=32)
groups = st.integers(2, 9).flatmap(
    lambda size: st.lists(st.lists(rewards, min_size=size, max_size=size), min_size=1, max_size=5)
)


@given(groups, st.sampled_from(SCALINGS), st.sampled_from([1e-4, 1e-2]))
def test_advantages_are_trl_s(found: list[list[float]], scaling: str, epsilon: float) -> None:
    """trl 1.16.0, GRPOTrainer._generate_and_score_completions, `sum_then_normalize`."""
    given = advantages(torch.tensor(found), scaling, epsilon)
    every = [reward for group in found for reward in group]
    for group, row in zip(found, given.tolist(), strict=True):
        spread = {"group": stdev(group), "batch": stdev(every), "none": 1.0}[scaling]
        by = spread + (0 if scaling == "none" else epsilon)
        expected = [(reward - fmean(group)) / by for reward in group]
        # what float32 leaves of a difference of rewards, over the spread
        assert row == pytest.approx(expected, rel=1e-4, abs=2e-7 / by)


@given(groups)
def test_no_advantage_exceeds_its_bound_and_a_group_s_mean_is_zero(
    found: list[list[float]],
) -> None:
    size = len(found[0])
    bounds = {
        "group": (size - 1) / math.sqrt(size),
        "batch": math.sqrt((size - 1) * (size * len(found) - 1) / size),
        "none": (size - 1) / size,
    }
    for scaling, bound in bounds.items():
        given = advantages(torch.tensor(found), scaling, 1e-4)
        assert float(given.abs().max()) <= bound * (1 + 1e-6)
        assert float(given.mean(1).abs().max()) <= 2e-3  # float32, over an epsilon of 1e-4


# --- KL divergence

logits = st.lists(st.floats(-4, 4), min_size=5, max_size=5)


@given(logits, logits)
def test_the_expectation_of_k3_is_the_kl_divergence_from_the_reference(
    policy: list[float], reference: list[float]
) -> None:
    p, q = (torch.tensor(x, dtype=torch.float64).log_softmax(0) for x in (policy, reference))
    analytic = float((p.exp() * (p - q)).sum())
    found = kl_estimate(p, q, "k3")
    assert float((p.exp() * found).sum()) == pytest.approx(analytic, abs=1e-12)
    assert float(found.min()) >= -1e-12
    assert not kl_estimate(p, p, "k3").any()


# --- the loss


def loss_of(
    values: Tensor,
    old: Tensor,
    reference: Tensor | None,
    gains: Tensor,
    mask: Tensor,
    aggregation: Any,
    kl_beta: float,
) -> Tensor:
    unsampled = torch.zeros_like(mask)
    targets = Targets(gains, mask, unsampled, torch.zeros(mask.shape), reference, old)
    totals = Totals(len(mask), int(mask.sum()), 1, 11)
    changed = replace(SETTINGS, aggregation=aggregation, kl_beta=kl_beta)
    return policy_loss(values, targets, totals, changed, Stages())


@given(st.integers(0, 1000), st.integers(0, 5), st.sampled_from(AGGREGATIONS))
@settings(max_examples=20)
def test_padding_does_not_change_the_loss(
    random_model: RandomModel, seed: int, more: int, aggregation: str
) -> None:
    model, base = random_model(0), random_model(1)
    ids, real, sampled = ragged(seed, 4, 9)
    gains = torch.tensor([1.0, -0.5, 0.3, -2.0])

    def loss(ids: Tensor, real: Tensor, sampled: Tensor) -> float:
        with torch.no_grad():
            values, reference = (token_logprobs(m, ids, real, sampled) for m in (model, base))
        return float(loss_of(values, values, reference, gains, sampled, aggregation, 0.04))

    padding = torch.full((4, more), 7)
    nothing = torch.zeros(4, more, dtype=torch.bool)
    noise = torch.where(real, ids, (ids + 5) % VOCABULARY)
    padded = [
        torch.cat(pair, 1) for pair in ((noise, padding), (real, nothing), (sampled, nothing))
    ]
    assert loss(*padded) == pytest.approx(loss(ids, real, sampled), rel=1e-5, abs=1e-7)


def test_only_clipping_in_the_direction_of_the_gain_stops_the_gradient() -> None:
    old = torch.zeros(1, 4)
    values = torch.tensor([[0.5, -0.5, 0.5, -0.5]], requires_grad=True)
    mask = torch.ones(1, 4, dtype=torch.bool)
    for gain, moved in ((1.0, [False, True, False, True]), (-1.0, [True, False, True, False])):
        loss = loss_of(values, old, None, torch.tensor([gain]), mask, "bnpo", 0.0)
        [gradient] = torch.autograd.grad(loss, values)
        assert (gradient[0] != 0).tolist() == moved


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_batch_without_a_token_to_train_on_has_loss_zero(aggregation: str) -> None:
    values = torch.zeros(2, 3, requires_grad=True)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    loss = loss_of(values, values, values, torch.ones(2), mask, aggregation, 0.04)
    assert loss.item() == 0


# --- sequences and masks


def test_a_batch_holds_what_was_sampled_and_masks_all_else(
    chat: Chat, environment: Environment, rollouts: list[Rollout]
) -> None:
    batch = build_batch(rollouts, Stages(), environment, chat)
    assert batch.ids.shape == (len(rollouts), max(len(r.ids) for r in rollouts))
    for b, current in enumerate(rollouts):
        length = len(current.ids)
        assert batch.ids[b, :length].tolist() == current.ids
        assert batch.sampled[b, :length].tolist() == current.sampled
        assert batch.real[b].tolist() == [t < length for t in range(batch.ids.shape[1])]
        # the loss counts what the model wrote, and neither the prompt nor what a tool wrote
        assert chat.decode(batch.ids[b, batch.loss[b]].tolist()) == (
            chat.decode([t for s in current.segments if s.role == "assistant" for t in s.ids])
        )
    assert torch.equal(batch.loss, batch.sampled)
    assert torch.equal(batch.attention, batch.real)
    assert not (batch.sampled & ~batch.real).any()


def test_rows_of_a_batch_are_cut_to_their_longest(
    chat: Chat, environment: Environment, rollouts: list[Rollout]
) -> None:
    batch = build_batch(rollouts, Stages(), environment, chat)
    shortest = sorted(range(len(rollouts)), key=lambda b: len(rollouts[b].ids))[:3]
    alone = build_batch([rollouts[b] for b in shortest], Stages(), environment, chat)
    cut = batch.rows(torch.tensor(shortest))
    assert cut.ids.shape[1] < batch.ids.shape[1]
    for field in fields(Batch):
        assert torch.equal(getattr(cut, field.name), getattr(alone, field.name))


# --- faults


def implementations(stages: Stages) -> dict[str, Any]:
    return {field.name: getattr(stages, field.name) for field in fields(stages)}


def test_the_stages_that_have_names_are_those_that_can_be_swapped() -> None:
    assert tuple(field.name for field in fields(Stages)) == STAGES


@pytest.mark.parametrize("fault", variant_names())
def test_a_fault_changes_its_own_stage_only(fault: str) -> None:
    healthy, faulty = (implementations(s) for s in (Stages(), stages_with([fault])))
    assert {name for name in healthy if healthy[name] is not faulty[name]} == {stage_of(fault)}


# --- training


@pytest.fixture(scope="module")
def trained(
    chat: Chat, talkative: Talkative, environment: Environment, rows: list[MuSiQueRow]
) -> Callable[..., TrainingResult]:
    """(stages, seed, **settings) -> two steps from the same model."""

    def run(stages: Stages, seed: int = 0, **changes: Any) -> TrainingResult:
        model, reference = talkative(0), talkative(0)
        training = Training(chat, environment, rows, replace(SETTINGS, **changes), seed, stages)
        observer = RunObserver(NO_ROLLOUTS)
        return train(training, model, reference, sampler_of(model, chat), observer=observer)

    return run


def test_the_same_seed_gives_the_same_bytes_of_metrics_and_another_seed_others(
    trained: Callable[..., TrainingResult],
) -> None:
    first, again, other = (trained(Stages(), seed) for seed in (0, 0, 1))
    assert json.dumps(first.metrics) == json.dumps(again.metrics)
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)
    assert json.dumps(first.metrics) != json.dumps(other.metrics)
    assert first.metrics[0]["reward_std"] > 0  # else there is nothing to learn from
    assert [row["step"] for row in first.metrics] == [1, 2]


def moved(result: TrainingResult, start: Any) -> float:
    before = start.state_dict()
    return max(float((result.weights[n] - before[n]).abs().max()) for n in before)


def test_training_moves_the_weights_by_its_learning_rate_and_not_without(
    trained: Callable[..., TrainingResult], talkative: Talkative
) -> None:
    assert moved(trained(Stages(), learning_rate=0.0), talkative(0)) == 0
    # AdamW's first steps move each weight by about the learning rate
    assert 0.003 / 2 < moved(trained(Stages()), talkative(0)) < 0.003 * 3


def test_the_reference_stays_and_the_first_step_s_kl_is_zero(
    trained: Callable[..., TrainingResult],
) -> None:
    first, second = trained(Stages(), learning_rate=1e-2).metrics
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert second["kl"] > 1e-5
    assert "kl" not in trained(Stages(), kl_beta=0.0).metrics[0]


def test_a_fault_cannot_hide_itself_from_the_sampler_gap(
    trained: Callable[..., TrainingResult],
) -> None:
    """Computed from the environment's masks and the sampler's log-probabilities."""
    for fault in ("attention-from-loss-mask", "prompt-without-tools", "tool-turn-rendered-alone"):
        [row] = trained(stages_with([fault]), steps=1).metrics
        assert row["sampler_gap/mean_abs"] > 1e-3
        [healthy] = trained(Stages(), steps=1).metrics
        for name in ("reward", "sampled_tokens", "turns/mean", "completions/clipped_ratio"):
            assert row[name] == healthy[name]


def test_the_sampler_gap_is_of_every_sampled_token_whatever_the_loss_counts(
    trained: Callable[..., TrainingResult],
) -> None:
    masks: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "all": lambda sampled, real: real,
        "half": lambda sampled, real: sampled & (sampled.cumsum(1) % 2 == 0),
    }
    for name, mask in masks.items():
        [row] = trained(Stages(loss_mask=mask), steps=1).metrics
        assert row["sampler_gap/max_abs"] < 1e-5
        assert (row["trained_tokens"] > row["sampled_tokens"]) == (name == "all")


@pytest.mark.heavy
def test_a_model_without_training_learns_by_grpo_alone_and_not_through_a_stale_sampler(
    trained: Callable[..., TrainingResult],
) -> None:
    budget = {"steps": 16, "prompts_per_step": 6, "group_size": 8, "kl_beta": 0.0}
    for stages, learns in ((Stages(), True), (stages_with(["stale-sampler"]), False)):
        rewards = [row["reward"] for row in trained(stages, **budget).metrics]
        assert (fmean(rewards[-6:]) > 2 * fmean(rewards[:6])) == learns
