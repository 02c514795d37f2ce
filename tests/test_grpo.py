import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lab.model.warmup import predicting_only
from rlvr_debug.causes import stage_of, stages_with, variant_names
from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.loss import Batch, build_batch, policy_loss
from rlvr_debug.grpo.objective import Totals, advantages
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.chat import Chat
from rlvr_debug.sampling.in_process import InProcessSampler
from rlvr_debug.sampling.rollouts import Rollout, rollout
from tests.small import AGGREGATIONS, ROWS, SETTINGS, Train, held

RandomModel = Callable[..., Any]
Talkative = Callable[[int], Any]
VOCABULARY = 40


@pytest.fixture(scope="module")
def rollouts(chat: Chat, talkative: Talkative, environment: Environment) -> list[Rollout]:
    """Some with several turns and some with one."""
    model = talkative(0)
    sampler = InProcessSampler(model.config.to_dict(), model.state_dict(), chat.ends)
    found = rollout(ROWS, environment, chat, sampler, temperature=1.0, seed=0)
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


# --- the loss


@given(st.integers(0, 1000), st.integers(0, 5), st.sampled_from(AGGREGATIONS))
@settings(max_examples=20)
def test_padding_does_not_change_the_loss(
    random_model: RandomModel, seed: int, more: int, aggregation: Any
) -> None:
    model, base = random_model(0), random_model(1)
    ids, real, sampled = ragged(seed, 4, 9)
    gains = torch.tensor([1.0, -0.5, 0.3, -2.0])

    def loss(ids: Tensor, real: Tensor, sampled: Tensor) -> float:
        with torch.no_grad():
            values, reference = (token_logprobs(m, ids, real, sampled) for m in (model, base))
        unsampled = torch.zeros_like(sampled)
        totals = Totals(len(ids), int(sampled.sum()), 1, 11)
        sampler = torch.zeros(ids.shape)
        experience = held(gains, sampled, unsampled, sampler, reference, values, totals)
        changed = replace(SETTINGS, aggregation=aggregation, kl_beta=0.04)
        return float(policy_loss(values, experience, changed, Stages()))

    padding = torch.full((4, more), 7)
    nothing = torch.zeros(4, more, dtype=torch.bool)
    noise = torch.where(real, ids, (ids + 5) % VOCABULARY)
    padded = [
        torch.cat(pair, 1) for pair in ((noise, padding), (real, nothing), (sampled, nothing))
    ]
    assert loss(*padded) == pytest.approx(loss(ids, real, sampled), rel=1e-5, abs=1e-7)


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


@pytest.mark.parametrize("fault", variant_names())
def test_a_fault_changes_its_own_stage_only(fault: str) -> None:
    healthy, faulty = (implementations(s) for s in (Stages(), stages_with([fault])))
    assert {name for name in healthy if healthy[name] is not faulty[name]} == {stage_of(fault)}


# --- training


def test_the_same_seed_gives_the_same_bytes_of_metrics_and_another_seed_others(
    trained: Train,
) -> None:
    first, again, other = (trained(seed=seed) for seed in (0, 0, 1))
    assert json.dumps(first.metrics) == json.dumps(again.metrics)
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)
    assert json.dumps(first.metrics) != json.dumps(other.metrics)
    assert first.metrics[0]["reward_std"] > 0  # else there is nothing to learn from
    assert [row["step"] for row in first.metrics] == [1, 2]


def test_the_reference_stays_and_the_first_step_s_kl_is_zero(
    trained: Train,
) -> None:
    first, second = trained(Stages(), learning_rate=1e-2).metrics
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    assert second["kl"] > 1e-5
    assert "kl" not in trained(Stages(), kl_beta=0.0).metrics[0]


def test_the_sampler_gap_is_of_every_sampled_token_whatever_the_loss_counts(
    trained: Train,
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
    trained: Train,
) -> None:
    budget: dict[str, Any] = {"steps": 16, "prompts_per_step": 6, "group_size": 8, "kl_beta": 0.0}
    budget |= {"num_iterations": 2, "warmup_steps": 8}
    for stages, learns in ((Stages(), True), (stages_with(["stale-sampler"]), False)):
        rewards = [row["reward"] for row in trained(stages, **budget).metrics]
        assert (fmean(rewards[-6:]) > 2 * fmean(rewards[:6])) == learns
