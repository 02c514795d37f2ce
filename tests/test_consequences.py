"""What follows from how steps are set: measured in records of our own trainer, and of numbers made for it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.replay.consequences import CONSEQUENCES, consequences_of
from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.record import Batch, Call, Generation, Record, Update
from rlvr_debug.replay.settings import Sampling, Settings

EOS, PAD, WORD = 1, 0, 7


def record(rewards: list[list[float]], **told: Any) -> Record:
    """Return a record of one generation: groups of these rewards, whose replies end by themselves."""
    count, size = sum(map(len, rewards)), len(rewards[0])
    settings = Settings(
        group_size=size,
        sampling=Sampling(),
        max_completion_length=8,
        eos_ids=(EOS,),
        pad_id=PAD,
        **told,
    )
    ids = torch.tensor([[WORD, WORD + n, EOS] for n in range(count)])
    mask = torch.ones_like(ids)
    gains = torch.tensor(rewards)
    gains = gains - gains.mean(1, keepdim=True)
    batch = Batch(
        torch.full((count, 2), WORD),
        torch.ones(count, 2).long(),
        ids,
        mask,
        mask.bool(),
        gains.flatten(),
    )
    call = Call([[WORD, WORD] for _ in range(count)], ids.tolist())
    generation = Generation(
        rows=[{"prompt": f"row {n // size}"} for n in range(count)],
        calls=[call],
        rewards=torch.tensor(rewards).flatten()[:, None],
        batch=batch,
    )
    return Record("made up", settings, None, None, lambda: None, generations=[generation])


def found(of: Record, name: str) -> Consequence:
    [one] = [each for each in consequences_of(of) if each.name == name]
    return one


LEARNED = [[0.0, 1.0, 0.0, 1.0]] * 4


def test_what_is_ordinary_is_within_every_bound() -> None:
    ordinary = record(LEARNED, kl_beta=0.04, warmup_steps=2, total_steps=50)
    ordinary.updates.append(Update(optimizer="AdamW"))
    [only] = ordinary.generations
    assert only.batch is not None
    ones = torch.ones_like(only.batch.completion_ids).float()
    only.batch = replace(only.batch, old=-ones, sampler=-ones, importance_weights=ones)
    second = copy.deepcopy(ordinary.generations[0])
    second.rows = [{"prompt": f"other {row['prompt']}"} for row in second.rows]
    ordinary.generations.append(second)
    measured = consequences_of(ordinary)
    assert [each.name for each in measured] == list(CONSEQUENCES)
    assert [each.name for each in measured if not each.passed] == []


def test_of_an_empty_record_nothing_is_measured() -> None:
    empty = record(LEARNED)
    empty.generations = []
    assert consequences_of(empty) == ()


@pytest.mark.parametrize(("cut", "passed"), [(3, True), (4, False)])
def test_replies_that_a_limit_ends_are_counted(cut: int, passed: bool) -> None:
    made = record(LEARNED)
    for output in made.generations[0].calls[0].outputs[:cut]:
        output[-1] = WORD
    limits = found(made, "limits")
    assert limits.measured["share_of_replies_cut"] == cut / 16
    assert limits.passed is passed
    assert passed or "25% of the replies do not end by themselves" in limits.said


def test_prompts_and_conversations_near_their_limits_are_counted() -> None:
    near = found(record(LEARNED, max_prompt_length=12, max_context=15), "limits")
    assert near.measured["share_of_prompts_near_or_over"] == 1
    assert near.measured["share_of_rollouts_near_or_over"] == 1
    assert "limit of 12 tokens" in near.said
    assert "limit of 15 tokens" in near.said
    far = found(record(LEARNED, max_prompt_length=13, max_context=16), "limits")
    assert far.passed
    assert "context_limit" not in found(record(LEARNED), "limits").measured


def test_rewards_without_contrast_are_out_of_bound_and_a_chance_draw_is_not() -> None:
    dead = found(record([[0.3] * 4] * 4), "contrast")
    assert not dead.passed
    assert dead.measured["share_of_dead_groups"] == 1
    assert "in 4 of 4 groups not at all" in dead.said
    # one group of four has all the contrast: below 0.1 on average, and by chance
    lucky = found(record([[0.0, 0.0, 0.0, 0.6], *[[0.3] * 4] * 3]), "contrast")
    assert lucky.measured["std_within_groups"] < 0.1
    assert lucky.passed


@given(st.floats(0.01, 100), st.floats(-50, 50))
def test_the_scale_of_rewards_does_not_matter(scale: float, shift: float) -> None:
    """Of rewards outside [0, 1] the range is the unit."""
    plain = [[0.0, 10.0, 2.0, 4.0], [5.0, 5.1, 5.0, 5.1], [0.0, 3.0, 9.0, 1.0]]
    other = [[scale * 20 * (each - 50) + shift for each in group] for group in plain]
    for name in ("contrast", "nearly equal rewards"):
        assert found(record(plain), name).passed == found(record(other), name).passed


def test_groups_of_nearly_equal_rewards_are_weighed_by_their_advantages() -> None:
    rewards = [[0.0, 1.0, 0.0, 1.0], *[[0.50, 0.51, 0.50, 0.51]] * 3]
    plain = record(rewards)
    assert found(plain, "nearly equal rewards").measured["gradient_share_of_small_spread"] < 0.05
    scaled = record(rewards)
    batch = scaled.generations[0].batch
    assert batch is not None
    gains = torch.tensor(rewards)
    scaled.generations[0].batch = replace(
        batch,
        advantages=((gains - gains.mean(1, keepdim=True)) / gains.std(1, keepdim=True)).flatten(),
    )
    assert found(scaled, "nearly equal rewards").measured["gradient_share_of_small_spread"] == (
        pytest.approx(0.75)
    )


@pytest.mark.parametrize(
    ("told", "passed"),
    [
        ({"kl_estimator": "k3"}, True),
        ({"kl_estimator": "k2"}, True),
        ({"kl_estimator": "k1"}, False),
        ({"kl_estimator": "k1", "use_bias_correction_kl": True}, True),
        ({"kl_estimator": "k1", "kl_place": "reward"}, True),
        ({"kl_estimator": "k3", "kl_place": "reward"}, False),
    ],
)
def test_a_kl_term_that_holds_nothing_is_out_of_bound(told: dict[str, Any], passed: bool) -> None:
    """arXiv 2506.09477: which estimators have the KL's gradient, and where."""
    kl = found(record(LEARNED, kl_beta=0.04, **told), "KL's gradient")
    assert kl.passed is passed
    if told == {"kl_estimator": "k2"}:
        assert kl.measured["relative_error_far"] < 1e-12


def test_without_a_kl_term_its_gradient_is_no_question() -> None:
    assert "KL's gradient" not in [each.name for each in consequences_of(record(LEARNED))]


def test_the_same_rows_in_every_generation_are_said() -> None:
    made = record(LEARNED)
    made.generations.append(made.generations[0])
    assert not found(made, "rows repeated").passed


def test_a_warm_up_that_does_not_end_is_said() -> None:
    made = record(LEARNED, warmup_steps=10, total_steps=10)
    made.updates.append(Update(optimizer="AdamW"))
    assert not found(made, "schedule").passed


def corrected(weights: list[list[float]], gap: float, lengths: list[int]) -> Record:
    """Return a record of one generation with these importance weights, whose sampler is off by `gap` in every token."""
    width = max(lengths)
    mask = torch.tensor([[int(n < length) for n in range(width)] for length in lengths])
    batch = Batch(
        torch.full((len(lengths), 2), WORD),
        torch.ones(len(lengths), 2).long(),
        torch.full((len(lengths), width), WORD),
        mask,
        mask.bool(),
        torch.zeros(len(lengths)),
        old=torch.full((len(lengths), width), -1.0),
        sampler=torch.full((len(lengths), width), -1.0 - gap),
        importance_weights=torch.tensor(weights),
    )
    settings = Settings(2, Sampling(), 8, importance_correction="sequence_mask")
    generations = [Generation(batch=batch)]
    return Record("made up", settings, None, None, lambda: None, generations=generations)


@pytest.mark.parametrize(
    ("weights", "gap", "lengths", "said"),
    [
        ([[1.0], [1.0], [1.0], [1.0]], 0.01, [2, 2, 8, 8], ""),
        ([[1.0], [1.0], [1.0], [1.0]], 0.06, [2, 2, 8, 8], "differ by 0.06 nats a token"),
        ([[0.01], [0.01], [0.01], [9.0]], 0.01, [2, 2, 2, 2], "leaves 25% of the effective sample"),
        ([[1.0], [1.0], [1.0], [0.0]], 0.01, [2, 2, 2, 2], "masks 25% of its weights"),
        (
            [[1.0], [0.99], [0.5], [0.51]],
            0.01,
            [2, 2, 8, 8],
            "longer replies 0.51 times the weight",
        ),
        # by chance, of two of each
        ([[1.2], [0.8], [1.4], [0.3]], 0.01, [2, 2, 8, 8], ""),
    ],
)
def test_what_a_correction_for_the_sampler_costs_is_measured(
    weights: list[list[float]], gap: float, lengths: list[int], said: str
) -> None:
    one = found(corrected(weights, gap, lengths), "correction")
    assert one.passed == (not said)
    assert said in one.said
    assert one.measured["gap"] == pytest.approx(gap, rel=1e-3)


def test_a_run_without_a_correction_has_none_to_measure() -> None:
    assert "correction" not in {each.name for each in consequences_of(record(LEARNED))}
