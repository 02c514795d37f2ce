"""From a batch to new weights: several updates, schedules, adapters, limits."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr_debug.environments.base import Environment
from rlvr_debug.grpo.logprobs import token_logprobs
from rlvr_debug.grpo.objective import kl_estimate, normalize_then_sum
from rlvr_debug.grpo.policy import Policy, build_policy
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.grpo.trainer import build_optimizer, build_scheduler
from rlvr_debug.sampling.chat import Chat
from tests.small import SETTINGS, Train


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return math.sqrt(sum(float((a[name] - b[name]).square().sum()) for name in a))


# --- several updates and micro-batches


def test_old_log_probabilities_are_those_before_the_batch_s_first_update(trained: Train) -> None:
    ratios: list[Tensor] = []

    def ratio(logprobs: Tensor, old: Tensor, mask: Tensor, level: str) -> Tensor:
        found = (logprobs - old).exp()
        ratios.append(found.detach()[mask.bool()])
        return found

    stages = Stages(importance_ratio=ratio)
    trained(stages, num_iterations=3, gradient_accumulation_steps=2)
    spread = [float((r - 1).abs().max()) for r in ratios]
    calls = 3 * 2 + 2 * 2  # updates, and the diagnostics' two terms of the first, in micro-batches
    assert len(spread) == 2 * calls
    for step in (spread[:6], spread[calls : calls + 6]):
        assert max(step[:2]) < 1e-6
        assert min(step[2:]) > 1e-4


def test_each_update_is_an_optimizer_step_of_its_own(trained: Train) -> None:
    one, three = (trained(steps=1, num_iterations=n, kl_beta=0.0).weights for n in (1, 3))
    start = trained(learning_rate=0.0).weights
    assert 1.5 * distance(one, start) < distance(three, start) < 3.5 * distance(one, start)


def test_no_update_starts_with_the_gradient_of_the_one_before(trained: Train) -> None:
    one, three = (
        [row["grad_norm"] for row in trained(learning_rate=0.0, num_iterations=n).metrics]
        for n in (1, 3)
    )
    assert three == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("aggregation", ["grpo", "dr_grpo", "dapo"])
def test_a_step_does_not_depend_on_the_number_of_micro_batches(
    trained: Train, aggregation: str
) -> None:
    runs = [
        trained(steps=1, aggregation=aggregation, gradient_accumulation_steps=parts)
        for parts in (1, 3, 5, 12)
    ]
    for run in runs[1:]:
        assert run.metrics[0]["grad_norm"] == pytest.approx(
            runs[0].metrics[0]["grad_norm"], rel=1e-4
        )
        assert run.metrics[0]["loss"] == pytest.approx(runs[0].metrics[0]["loss"], abs=1e-6)


def test_gradients_are_clipped_to_their_norm_and_no_smaller_one_is(trained: Train) -> None:
    [row] = trained(steps=1).metrics
    seen: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def watched(parameters: list[Tensor], limit: float) -> Tensor:
        norm = clip(parameters, limit)
        found = [parameter.grad for parameter in parameters if parameter.grad is not None]
        seen.append(math.sqrt(sum(float(gradient.square().sum()) for gradient in found)))
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", watched)
        for limit in (row["grad_norm"] / 10, row["grad_norm"] * 10):
            [again] = trained(steps=1, max_grad_norm=limit).metrics
            assert again["grad_norm"] == row["grad_norm"]
    assert seen == pytest.approx([row["grad_norm"] / 10, row["grad_norm"]], rel=1e-4)


# --- schedules


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [0, 0.5, 1, 1, 1, 1]),
        ("linear", [0, 0.5, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0, 0.5, 1, *[(1 + math.cos(math.pi * i / 4)) / 2 for i in (1, 2, 3)]]),
    ],
)
def test_the_learning_rate_warms_up_and_ends_with_the_last_update(
    name: Any, expected: list[float]
) -> None:
    settings = replace(SETTINGS, steps=3, num_iterations=2, lr_scheduler_type=name, warmup_steps=2)
    optimizer = build_optimizer([torch.zeros(1, requires_grad=True)], settings)
    scheduler = build_scheduler(optimizer, settings)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"] / settings.learning_rate)
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)


def test_warm_up_begins_at_no_rate_at_all(trained: Train) -> None:
    start = trained(learning_rate=0.0, steps=1).weights
    assert distance(trained(steps=1, warmup_steps=4).weights, start) == 0
    assert distance(trained(steps=2, warmup_steps=4).weights, start) > 0


# --- truncation


def test_masked_truncated_rollouts_are_not_trained_on(trained: Train) -> None:
    kept, masked = (
        trained(steps=1, mask_truncated_completions=m).metrics[0] for m in (False, True)
    )
    assert 0 < kept["completions/clipped_ratio"] < 1
    assert kept["trained_tokens"] == kept["sampled_tokens"] == masked["sampled_tokens"]
    assert 0 < masked["trained_tokens"] < kept["trained_tokens"]


def test_a_batch_with_nothing_to_learn_from_says_so_and_moves_nothing(trained: Train) -> None:
    nothing = Stages(loss_mask=lambda sampled, real: torch.zeros_like(sampled))
    with pytest.warns(UserWarning, match="no update") as warned:
        result = trained(nothing, weight_decay=0.1, num_iterations=2)
    said = [str(each.message) for each in warned]
    assert said == [f"step {n}: no token to learn from, no update" for n in (1, 2)]
    assert [row["skipped_updates"] for row in result.metrics] == [2, 2]
    assert [row["grad_norm"] for row in result.metrics] == [0, 0]
    assert distance(result.weights, trained(learning_rate=0.0).weights) == 0
    assert "skipped_updates" not in trained().metrics[0]


def test_a_long_prompt_is_cut_for_sampler_and_trainer_alike(trained: Train) -> None:
    [row] = trained(steps=1, max_prompt_length=20).metrics
    assert row["prompts/clipped_ratio"] == 1
    assert row["sampler_gap/max_abs"] < 1e-5
    assert row["grad_norm"] != trained(steps=1).metrics[0]["grad_norm"]


# --- rewards


def test_parts_of_the_reward_are_normalized_by_the_environment_s_weights(
    trained: Train, environment: Environment
) -> None:
    seen: list[Tensor] = []

    def stage(rewards: Tensor, scaling: str, epsilon: float) -> Tensor:
        seen.append(rewards)
        return rewards - rewards.mean(1, keepdim=True)

    trained(Stages(advantages=stage), steps=1, multi_objective_aggregation="normalize_then_sum")
    assert [list(x.shape) for x in seen] == [[3, 4]] * len(environment.weights) + [[1, 12]]
    again = normalize_then_sum(
        torch.stack(seen[:-1], -1), torch.tensor(list(environment.weights.values())), 0.0, stage
    )
    assert torch.equal(again.flatten(), (seen[-1] - seen[-1].mean()).flatten())


def test_kl_in_the_reward_is_no_term_of_the_loss(trained: Train) -> None:
    calls: list[bool] = []

    def kl(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
        calls.append(logprobs.requires_grad)
        assert estimator == "k1"
        return kl_estimate(logprobs, reference, estimator)

    settings = {"kl_beta": 5.0, "kl_estimator": "k1"}
    inside = trained(Stages(kl=kl), kl_place="reward", **settings)
    assert not any(calls)
    without = trained(kl_beta=0.0)
    # at the first step there is nothing to take away, at the second there is
    assert inside.metrics[0]["loss"] == pytest.approx(without.metrics[0]["loss"], abs=1e-6)
    assert inside.metrics[1]["kl"] != 0
    assert inside.metrics[1]["loss"] != pytest.approx(without.metrics[1]["loss"], abs=1e-4)
    assert inside.metrics[1]["reward"] == without.metrics[1]["reward"]


def test_an_importance_cap_corrects_for_a_stale_sampler_and_leaves_a_fresh_one(
    trained: Train,
) -> None:
    settings = {"steps": 3, "learning_rate": 1e-2}
    plain, fresh = (trained(importance_sampling_cap=c, **settings).metrics[-1] for c in (0.0, 1e6))
    assert fresh["loss"] == pytest.approx(plain["loss"], abs=1e-5)
    stale = Stages(sync=lambda weights, sampler: None)
    plain, corrected = (
        trained(stale, importance_sampling_cap=c, **settings).metrics[-1] for c in (0.0, 2.0)
    )
    assert corrected["loss"] != pytest.approx(plain["loss"], abs=1e-3)


# --- log-probabilities in other precisions


def test_precision_of_the_log_probabilities(random_model: Callable[..., Any]) -> None:
    ids = torch.randint(40, (4, 9), generator=torch.Generator().manual_seed(0))
    wanted = torch.ones(ids.shape, dtype=torch.bool)
    model = random_model(0).requires_grad_(False)
    single = token_logprobs(model, ids, wanted, wanted)
    half = token_logprobs(model, ids, wanted, wanted, dtype=torch.bfloat16)
    double = token_logprobs(model, ids, wanted, wanted, dtype=torch.float64)
    assert (single.dtype, half.dtype, double.dtype) == (
        torch.float32,
        torch.float32,
        torch.float64,
    )
    assert torch.allclose(single.double(), double, rtol=0, atol=1e-5)
    assert 1e-3 < float((half - single).abs().max()) < 0.1


# --- LoRA


def lora(random_model: Callable[..., Any], chat: Chat) -> Policy:
    model = random_model(0, vocab_size=len(chat.tokenizer))
    policy = build_policy(model, None, replace(SETTINGS, lora_r=2, lora_alpha=8), seed=3)
    with torch.no_grad():
        for parameter in policy.trained:
            parameter += 0.05
    return policy


@pytest.fixture
def _peft() -> None:
    pytest.importorskip("peft", reason="peft is not installed: no LoRA")


@pytest.mark.usefixtures("_peft")
def test_merged_weights_are_the_adapted_model_and_the_trainer_s_stay(
    random_model: Callable[..., Any], chat: Chat
) -> None:
    base = random_model(0, vocab_size=len(chat.tokenizer))
    policy = lora(random_model, chat)
    before = {name: w.clone() for name, w in policy.model.state_dict().items()}
    weights = policy.weights()
    assert all(torch.equal(w, before[name]) for name, w in policy.model.state_dict().items())

    ids = torch.randint(40, (4, 9), generator=torch.Generator().manual_seed(0))
    every = torch.ones(ids.shape, dtype=torch.bool)
    with torch.no_grad():
        adapted = token_logprobs(policy.model, ids, every, every)
        with policy.as_reference() as reference:
            unadapted = token_logprobs(reference, ids, every, every)
        assert torch.equal(token_logprobs(policy.model, ids, every, every), adapted)
        assert torch.equal(token_logprobs(base, ids, every, every), unadapted)
        base.load_state_dict(weights)  # the same names, none missing
        merged = token_logprobs(base, ids, every, every)
    assert torch.allclose(merged, adapted, rtol=0, atol=1e-5)
    assert float((merged - unadapted).abs().max()) > 0.1


@pytest.mark.usefixtures("_peft")
def test_an_adapter_starts_as_the_base_model_with_its_own_seed_and_moves_alone(
    random_model: Callable[..., Any],
) -> None:
    models = [random_model(0) for _ in range(3)]
    state = torch.get_rng_state()
    settings = replace(SETTINGS, lora_r=2)
    first, again, other = (
        build_policy(model, None, settings, seed)
        for model, seed in zip(models, (0, 0, 1), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(first.trained, again.trained, strict=True):
        assert torch.equal(a, b)
    assert not all(torch.equal(a, b) for a, b in zip(first.trained, other.trained, strict=True))
    start = random_model(0).state_dict()
    assert distance(first.weights(), dict(start)) == 0
    names = [n for n, p in first.model.named_parameters() if p.requires_grad]
    assert names
    assert all(".lora_" in name for name in names)
    assert not any("lm_head" in name or "embed" in name for name in names)


@pytest.mark.usefixtures("_peft")
def test_training_an_adapter_keeps_the_sampler_with_it_and_leaves_the_rest(
    trained: Train, talkative: Callable[[int], Any]
) -> None:
    result = trained(lora_r=4, learning_rate=1e-2, steps=4, num_iterations=2)
    assert max(row["sampler_gap/max_abs"] for row in result.metrics) < 2e-5
    assert result.metrics[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert result.metrics[-1]["kl"] > 1e-4
    assert result.adapter is not None
    assert result.weights.keys() == result.adapter.weights.keys()
    start = talkative(0).state_dict()
    whole = result.adapter.on(start)
    moved = {name for name, w in whole.items() if not torch.equal(w, start[name])}
    assert moved
    assert all("proj.weight" in name for name in moved)


def test_without_an_adapter_all_weights_are_the_model_s_own(
    random_model: Callable[..., Any],
) -> None:
    model = random_model(0)
    policy = build_policy(model, None, SETTINGS, seed=0)
    assert len(policy.trained) == len(list(model.parameters()))
    assert distance(policy.weights(), model.state_dict()) == 0


# --- memory and precision


def test_recomputed_activations_give_the_same_step(trained: Train) -> None:
    kept, again = trained(), trained(gradient_checkpointing=True)
    assert kept.metrics == again.metrics
    assert distance(kept.weights, again.weights) == 0


def test_bfloat16_computes_and_does_not_store(trained: Train) -> None:
    """Stored in bfloat16, an update below 1/256 of a weight is rounded away."""
    half = trained(bf16=True, learning_rate=1e-6)
    moved = distance(half.weights, trained(steps=1, learning_rate=1e-12).weights)
    assert all(weight.dtype == torch.float32 for weight in half.weights.values())
    assert moved > 0
    gap = half.metrics[0]["sampler_gap/max_abs"]
    assert 1e-4 < gap < 0.5  # the sampler computes in float32
