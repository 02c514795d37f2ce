"""Properties of the stages that are pure functions, on tensors and tabular distributions."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlvr_debug.checkout import ROOT
from rlvr_debug.grpo.loss import Experience, policy_loss
from rlvr_debug.grpo.objective import (
    KL_ESTIMATORS,
    Totals,
    advantages,
    clipped_objective,
    importance_ratio,
    importance_weights,
    kl_estimate,
    normalize_then_sum,
    penalized,
)
from rlvr_debug.grpo.settings import TrainingSettings
from rlvr_debug.grpo.stages import Stages
from rlvr_debug.sampling.rollouts import truncated
from rlvr_debug.study.params import load_params
from tests.small import AGGREGATIONS, LEVELS, held

SETTINGS = load_params(ROOT / "params.yaml").training
MAX_TOKENS = 7
seeds = st.integers(0, 10_000)


# --- advantages


@given(seeds, st.integers(1, 5), st.integers(2, 9), st.integers(1, 4))
def test_normalized_parts_are_centred_bounded_and_blind_to_the_scale_of_a_part(
    seed: int, groups: int, size: int, count: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = torch.rand(groups, size, count, generator=generator, dtype=torch.float64)
    weights = torch.rand(count, generator=generator, dtype=torch.float64) + 0.1
    found = normalize_then_sum(parts, weights, 1e-12, advantages)
    assert float(found.mean()) == pytest.approx(0, abs=1e-9)
    rollouts = groups * size
    assert float(found.abs().max()) <= (rollouts - 1) / math.sqrt(rollouts) * (1 + 1e-9)
    scales = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    assert torch.allclose(found, normalize_then_sum(parts * scales, weights, 1e-12, advantages))


def test_a_part_with_a_small_spread_counts_as_much_as_one_with_a_large_one() -> None:
    parts = torch.tensor([[[1.0, 0.0], [0.0, 0.01], [0.0, 0.0]]], dtype=torch.float64)
    summed = advantages(parts.sum(-1), "group", 1e-9)[0]
    assert float(summed[1]) < 0 < float(summed[0])
    decoupled = normalize_then_sum(parts, torch.ones(2), 1e-9, advantages)[0]
    assert float(decoupled[1]) == pytest.approx(float(decoupled[0]), rel=1e-6)


# --- KL divergence, on policies over a few tokens, where an expectation is a sum

pairs = seeds.map(
    lambda seed: torch.randn(
        2, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
)


def expectation_and_gradient(
    values: Callable[[Tensor, Tensor], Tensor], logits: Tensor, reference: Tensor
) -> tuple[float, Tensor]:
    """Of E_p[values] with the gradient of the values alone, as a loss on sampled tokens has it."""
    leaf = logits.clone().requires_grad_()
    p = leaf.log_softmax(-1)
    expected = (p.detach().exp() * values(p, reference.log_softmax(-1))).sum()
    [gradient] = torch.autograd.grad(expected, leaf)
    return float(expected.detach()), gradient


def kl_and_gradient(logits: Tensor, reference: Tensor) -> tuple[float, Tensor]:
    leaf = logits.clone().requires_grad_()
    p, q = leaf.log_softmax(-1), reference.log_softmax(-1)
    kl = (p.exp() * (p - q)).sum()
    [gradient] = torch.autograd.grad(kl, leaf)
    return float(kl.detach()), gradient


@given(pairs)
def test_k1_and_k3_have_the_kl_for_their_mean_and_k2_its_gradient(pair: Tensor) -> None:
    kl, slope = kl_and_gradient(*pair)
    mean, gradient = {}, {}
    for name in KL_ESTIMATORS:

        def values(p: Tensor, q: Tensor, name: str = name) -> Tensor:
            return kl_estimate(p, q, name)

        mean[name], gradient[name] = expectation_and_gradient(values, *pair)
    assert mean["k1"] == pytest.approx(kl, abs=1e-12)
    assert mean["k3"] == pytest.approx(kl, abs=1e-12)
    assert torch.allclose(gradient["k2"], slope, atol=1e-12)
    # row 33 of known bugs: as a loss, k1 pulls nowhere, and k3 towards the forward KL
    assert float(gradient["k1"].abs().max()) < 1e-12
    p, q = (logits.softmax(-1) for logits in pair)
    assert torch.allclose(gradient["k3"], p - q, atol=1e-12)
    assert float(kl_estimate(p.log(), q.log(), "k3").min()) >= -1e-12


@given(pairs, st.sampled_from(["k1", "k3"]))
def test_weighted_by_the_ratio_an_unbiased_estimate_has_the_gradient_of_the_kl(
    pair: Tensor, name: str
) -> None:
    def corrected(p: Tensor, q: Tensor) -> Tensor:
        ratio = importance_ratio(p, p.detach(), torch.ones_like(p), "token")
        return kl_estimate(p, q, name) * ratio

    kl, slope = kl_and_gradient(*pair)
    mean, gradient = expectation_and_gradient(corrected, *pair)
    assert mean == pytest.approx(kl, abs=1e-12)
    assert torch.allclose(gradient, slope, atol=1e-12)


def test_a_reward_loses_the_kl_of_what_the_model_wrote() -> None:
    kl, mask = torch.tensor([[1.0, 2.0, 4.0]] * 2), torch.tensor([[True, False, True], [False] * 3])
    assert penalized(torch.tensor([1.0, 1.0]), kl, mask, 0.1).tolist() == pytest.approx([0.5, 1.0])


# --- ratio, clipping, importance weights


@given(seeds)
def test_a_sequence_s_ratio_is_the_geometric_mean_over_its_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 5, generator=generator) < 0.5
    mask[0] = False
    found = importance_ratio(new, old, mask.double(), "sequence")
    tokens = importance_ratio(new, old, mask.double(), "token")
    assert float(found[0]) == 1  # without a token, as the old policy
    for row in range(1, 3):
        if mask[row].any():
            expected = tokens[row, mask[row]].prod() ** (1 / int(mask[row].sum()))
            assert float(found[row]) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("ratio", "gain", "expected"),
    [
        (1.5, 1.0, 1.3),  # the upper epsilon
        (0.5, -1.0, -0.9),  # the lower one
        (0.5, 1.0, 0.5),  # not clipped where it would raise the objective
        (1.5, -1.0, -1.5),
        (9.0, -1.0, -2.0),  # but by delta
        (9.0, 1.0, 1.3),
    ],
)
def test_each_bound_of_the_ratio_acts_on_its_own_side(
    ratio: float, gain: float, expected: float
) -> None:
    found = clipped_objective(torch.tensor([[ratio]]), torch.tensor([gain]), 0.1, 0.3, 2.0)
    assert float(found) == pytest.approx(expected)


@given(seeds)
def test_uncapped_importance_weights_move_the_mean_from_the_sampler_to_the_policy(
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    policy, sampler = torch.randn(2, 1, 6, generator=generator, dtype=torch.float64).log_softmax(-1)
    rewards = torch.rand(6, generator=generator, dtype=torch.float64)
    every = torch.ones(1, 6, dtype=torch.bool)
    weights = importance_weights(policy, sampler, every, math.inf)
    found = float((sampler.exp() * weights * rewards).sum())
    assert found == pytest.approx(float((policy.exp() * rewards).sum()), rel=1e-12)
    capped = importance_weights(policy, sampler, every, 0.8)
    assert torch.equal(capped, weights.clamp(max=0.8))
    assert float(importance_weights(policy, sampler, ~every, 0.8).max()) == 0.8
    assert torch.equal(importance_weights(policy, sampler, ~every, math.inf), torch.ones(1, 6))


# --- the loss, however the batch is cut

NO_TOTALS = Totals(0, 0, 0, MAX_TOKENS)  # until it is known how the batch is cut


def case(seed: int, count: int) -> tuple[Tensor, Experience]:
    """Log-probabilities [count, 7] that require a gradient, and what they are held against."""
    generator = torch.Generator().manual_seed(seed)
    values, old, reference, sampler = torch.randn(
        4, count, MAX_TOKENS, generator=generator, dtype=torch.float64
    )
    mask = torch.rand(count, MAX_TOKENS, generator=generator) < 0.4
    mask[0] = False
    mask[-1, 2] = True
    gains = torch.randn(count, generator=generator, dtype=torch.float64)
    return values.requires_grad_(), held(gains, mask, mask, sampler, reference, old, NO_TOTALS)


def loss_of_parts(
    values: Tensor, experience: Experience, cuts: list[int], settings: TrainingSettings
) -> tuple[float, Tensor]:
    """Loss and gradient, with the batch cut before these rows."""
    totals = Totals(len(values), int(experience.loss.sum()), len(cuts) + 1, MAX_TOKENS)
    whole = replace(experience, totals=totals)
    parts = torch.arange(len(values)).tensor_split(cuts)
    losses = [policy_loss(values[rows], whole.rows(rows), settings, Stages()) for rows in parts]
    loss = torch.stack(losses).sum()
    [gradient] = torch.autograd.grad(loss, values)
    return float(loss.detach()), gradient


settings_of = st.builds(
    lambda aggregation, level, beta, correct, cap: replace(
        SETTINGS,
        aggregation=aggregation,
        importance_sampling_level=level,
        kl_beta=beta,
        use_bias_correction_kl=correct,
        importance_sampling_cap=cap,
    ),
    st.sampled_from([name for name in AGGREGATIONS if name != "bnpo"]),
    st.sampled_from(LEVELS),
    st.sampled_from([0.0, 0.04]),
    st.booleans(),
    st.sampled_from([0.0, 1.2]),
)


@given(seeds, st.integers(2, 8), st.lists(st.integers(1, 7), max_size=4), settings_of)
def test_neither_micro_batches_nor_ranks_change_the_gradient(
    seed: int, count: int, cuts: list[int], settings: TrainingSettings
) -> None:
    values, experience = case(seed, count)
    cuts = sorted(cut for cut in set(cuts) if cut < count)
    loss, gradient = loss_of_parts(values, experience, [], settings)
    cut_loss, cut_gradient = loss_of_parts(values, experience, cuts, settings)
    assert cut_loss == pytest.approx(loss, rel=1e-12, abs=1e-12)
    assert torch.allclose(cut_gradient, gradient, rtol=1e-12, atol=1e-15)


def test_bnpo_alone_depends_on_how_the_batch_is_cut_and_uncut_is_dapo() -> None:
    values, experience = case(0, 6)
    bnpo, dapo = (replace(SETTINGS, aggregation=name) for name in ("bnpo", "dapo"))
    _, whole = loss_of_parts(values, experience, [], bnpo)
    _, cut = loss_of_parts(values, experience, [1, 3], bnpo)
    assert torch.equal(whole, loss_of_parts(values, experience, [], dapo)[1])
    assert float((cut - whole).norm()) > 0.1 * float(whole.norm())


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_weights_tokens_as_it_is_defined_to(aggregation: Any) -> None:
    settings = replace(SETTINGS, aggregation=aggregation, clip=9.0, epsilon_high=9.0)
    values = torch.zeros(2, MAX_TOKENS, requires_grad=True)
    mask = torch.zeros(2, MAX_TOKENS, dtype=torch.bool)
    mask[0, :1] = mask[1, :3] = True
    experience = held(torch.ones(2), mask, mask, torch.zeros(mask.shape), None, None, NO_TOTALS)
    gradient = -loss_of_parts(values, experience, [], settings)[1]
    expected = {
        "grpo": (1 / 2, 1 / 6),
        "bnpo": (1 / 4, 1 / 4),
        "dapo": (1 / 4, 1 / 4),
        "dr_grpo": (1 / (2 * MAX_TOKENS),) * 2,
    }[aggregation]
    assert (float(gradient[0, 0]), float(gradient[1, 2])) == pytest.approx(expected)
    assert not gradient[~mask].any()


# --- prompts


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(0, 9))
def test_a_long_prompt_keeps_its_end_or_its_start(ids: list[int], limit: int) -> None:
    left, right = (truncated(ids, limit, side) for side in ("left", "right"))
    assert len(left) == len(right) == min(len(ids), limit or len(ids))
    assert ids[len(ids) - len(left) :] == left
    assert ids[: len(right)] == right
