"""What follows from how steps are set: measured in records of our own trainer, and of numbers made for it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvr_debug.replay.answer import answer_of, status_of
from rlvr_debug.replay.check import check
from rlvr_debug.replay.consequences import CONSEQUENCES
from rlvr_debug.replay.consequences import measured as all_measured
from rlvr_debug.replay.consequences.base import Consequence
from rlvr_debug.replay.declared import Own
from rlvr_debug.replay.record import (
    Batch,
    Call,
    Generation,
    MicroBatch,
    ParameterGroup,
    Record,
    Update,
)
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
        torch.tensor([[WORD, n // size] for n in range(count)]),
        torch.ones(count, 2).long(),
        ids,
        mask,
        mask.bool(),
        gains.flatten(),
    )
    call = Call([[WORD, WORD] for _ in range(count)], ids.tolist())
    generation = Generation(
        rows=[{"prompt": f"row {n // size}", "answer": f"A{n // size}"} for n in range(count)],
        calls=[call],
        rewards=torch.tensor(rewards).flatten()[:, None],
        batch=batch,
    )
    return Record("made up", settings, None, None, lambda: None, generations=[generation])


def found(of: Record, name: str) -> Consequence:
    [one] = [each for each in all_measured(of)[0] if each.name == name]
    return one


def trained(of: Record, rate: float = 1e-6, moved: float = 0.5) -> None:
    """Have two updates of all of the first generation in the record, of a weight of four numbers."""
    [only] = of.generations[:1]
    assert only.batch is not None
    logprobs = -torch.rand(
        only.batch.completion_ids.shape, generator=torch.Generator().manual_seed(0)
    )
    given = replace(only.batch, old=logprobs - 0.1, reference=logprobs + 0.1)
    of.trainable = ("w",)
    of.weights = [{"w": torch.ones(4) + n * moved * torch.tensor([1.0, 1, 1, 0])} for n in range(3)]
    for number in range(2):
        of.updates.append(
            Update(
                [MicroBatch(0, given, number, logprobs=logprobs)],
                *({"w": torch.ones(4)},) * 2,
                before=number,
                after=number + 1,
                optimizer="AdamW",
                groups=[ParameterGroup(("w",), rate, 0.0)],
            )
        )


LEARNED = [[0.0, 1.0, 0.0, 1.0]] * 4


def test_what_is_ordinary_is_within_every_bound() -> None:
    ordinary = record(LEARNED, kl_beta=0.04, warmup_steps=2, total_steps=50)
    [only] = ordinary.generations
    assert only.batch is not None
    ones = torch.ones_like(only.batch.completion_ids).float()
    only.batch = replace(only.batch, old=-ones, sampler=-ones, importance_weights=ones)
    trained(ordinary)
    second = copy.deepcopy(ordinary.generations[0])
    second.rows = [{"prompt": f"other {row['prompt']}"} for row in second.rows]
    assert second.batch is not None
    second.batch = replace(second.batch, prompt_ids=second.batch.prompt_ids + 10)
    ordinary.generations.append(second)
    measured = all_measured(ordinary)[0]
    assert [each.name for each in measured] == list(CONSEQUENCES)
    assert [each.name for each in measured if not each.passed] == []


def test_of_an_empty_record_nothing_is_measured() -> None:
    empty = record(LEARNED)
    empty.generations = []
    assert all_measured(empty)[0] == ()


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


def test_what_a_run_does_not_have_is_no_question() -> None:
    names = {each.name for each in all_measured(record(LEARNED))[0]}
    assert names.isdisjoint({"KL's gradient", "correction"})


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


def test_prompts_that_a_template_makes_the_same_are_said() -> None:
    made = record(LEARNED)
    [only] = made.generations
    assert found(made, "distinct prompts").passed
    assert only.batch is not None
    only.batch = replace(only.batch, prompt_ids=torch.full((16, 2), WORD))
    alike = found(made, "distinct prompts")
    assert alike.measured == {"rows": 16, "in_rows": 4, "in_tokens": 1}
    assert not alike.passed
    only.rows = [{"prompt": "one for all"} for _ in only.rows]
    assert found(made, "distinct prompts").passed


@pytest.mark.parametrize(
    ("prompt", "passed"),
    [
        ("What is it? It is {own}.", False),
        ("What is it? A0, A1, A2 or A3?", True),
        ("What is it?", True),
        ("word " * 100 + "It is {own}.", None),  # a text to be read
    ],
)
def test_an_answer_that_stands_in_its_own_prompt_alone_is_said(
    prompt: str, passed: bool | None
) -> None:
    made = record(LEARNED)
    for row in made.generations[0].rows:
        row["prompt"] = [{"role": "user", "content": prompt.format(own=row["answer"])}]
    measured = {each.name: each.passed for each in all_measured(made)[0]}
    assert measured.get("answers in prompts") is passed


@pytest.mark.parametrize(("kinds", "calls", "passed"), [(4, 1, False), (3, 1, True), (4, 2, True)])
def test_one_prompt_for_rows_that_differ_is_said_unless_an_environment_goes_on(
    kinds: int, calls: int, passed: bool
) -> None:
    made = record(LEARNED)
    for number, row in enumerate(made.generations[0].rows):
        row |= {"prompt": "{question}", "answer": str(number // 4 % kinds)}
    made.generations[0].calls *= calls
    assert found(made, "distinct prompts").passed is passed


def test_a_reward_of_the_prompt_alone_is_said_by_name_and_a_task_never_solved_is_not() -> None:
    of_prompts = found(record([[float(n)] * 4 for n in range(4)]), "rewards of prompts")
    assert not of_prompts.passed
    assert "the reward function 1 gives all completions of a prompt the same" in of_prompts.said
    assert found(record([[0.0] * 4] * 4), "rewards of prompts").passed
    assert found(record(LEARNED), "rewards of prompts").passed
    few = [each.name for each in all_measured(record([[0.0] * 4, [1.0] * 4]))[0]]
    assert "rewards of prompts" not in few


def test_a_rate_that_is_squared_is_said_and_a_warm_up_is_not() -> None:
    squared = record(LEARNED, learning_rate=1e-3)
    trained(squared, rate=1e-6)
    one = found(squared, "rate in effect")
    assert not one.passed
    assert "1e-06, 0.001 times the 0.001 that is set" in one.said
    rising = record(LEARNED, learning_rate=1e-3)
    trained(rising, rate=1e-6)
    rising.updates[1].groups = [ParameterGroup(("w",), 2e-6, 0.0)]
    assert found(rising, "rate in effect").passed
    for steps, passed in (
        (1_000, True),
        (4, False),
    ):  # squared, a rate rises too, and never to what is set
        rising.settings = replace(rising.settings, total_steps=steps)
        assert found(rising, "rate in effect").passed is passed
    usual = record(LEARNED, learning_rate=1e-6)
    trained(usual, rate=1e-6)
    assert found(usual, "rate in effect").passed


def test_weights_that_round_their_updates_away_are_said() -> None:
    made = record(LEARNED)
    trained(made, moved=0.0)
    moved = found(made, "weights moved")
    assert (moved.passed, moved.measured["share"]) == (False, 0)
    made = record(LEARNED)
    trained(made)
    assert found(made, "weights moved").measured["share"] == 0.75


def test_a_kl_term_that_is_most_of_the_gradient_is_said() -> None:
    for beta, passed in ((0.04, True), (1000.0, False)):
        made = record(LEARNED, kl_beta=beta)
        trained(made)
        assert found(made, "KL's share").passed is passed


@pytest.mark.parametrize(
    ("loss", "name", "value", "read"),
    [
        ("dapo", "delta", 1.5, True),
        ("cispo", "delta", 1.5, False),
        ("gmpo", "entropy_coef", 0.5, False),
        ("dr_grpo", "epsilon_high", 0.28, True),
        ("cispo", "epsilon_high", 0.21, True),
        ("sapo", "sapo_temperature_pos", 0.5, True),
        ("dapo", "sapo_temperature_pos", 0.5, False),
        ("dapo", "importance_sampling_level", "sequence", True),
        ("gmpo", "importance_sampling_level", "sequence", False),
    ],
)
def test_a_setting_that_the_loss_does_not_read_is_said(
    loss: str, name: str, value: Any, read: bool
) -> None:
    made = record(LEARNED, **{"loss_type": loss, name: value})
    trained(made)
    assert found(made, "settings without effect").passed  # nobody chose it
    made.own = Own(declared={"loss": loss}, chosen=(name,))
    one = found(made, "settings without effect")
    assert one.passed is read
    assert read or f"`{name}` ({value}) set, and without effect" in one.said


def test_a_consequence_whose_code_raises_is_a_note_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is wrong in one: the segments and the other consequences answer, and the exit status is 2."""

    def raises(_: Any) -> None:
        raise KeyError("planted")

    of = record(LEARNED)
    before = answer_of(of, check(of))
    monkeypatch.setitem(CONSEQUENCES, "limits", raises)
    answer = answer_of(of, check(of))
    [line] = answer["failed"]
    assert line.startswith("limits could not be computed: ")
    assert "planted" in line
    assert line in answer["notes"]
    assert status_of(before) != status_of(answer) == 2
    assert len(answer["consequences"]) == len(before["consequences"]) - 1
