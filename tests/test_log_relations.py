"""What checks read from how quantities go together, from the order of steps and from texts, at their bounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.causes.check import LARGE, MILD, STOPS
from rlvr_debug.diagnosis.rank import suspects
from rlvr_debug.logs.log import Log
from tests.test_log_checks import CHECKS, UP, groups_of_4, log_of, read, table

WAVES = [0.5, 0.4, 0.6] * 4
FLAT = {"reward": WAVES}
RATE = {"learning_rate": [1e-5] * 12}
EVEN = [0.5, 0.48, 0.52] * 4
STILL = {"reward": EVEN, "reward_std": EVEN, "length": [10.0 + n for n in EVEN]}
SMALL = [n * 1e-6 for n in (1, 3, 2, 4, 5, 4, 6, 5, 7, 6, 8, 7)]
MOVES = [0.01 * n for n in range(12)]
GROWS = [0.1 * n for n in range(12)]
FAR = [0.1, 0.2, 0.4, 1.0, 2.0, 3.0, 4.0, 5.0, 4.5, 5.5, 5.0, 6.0]
LONGER = [100.0 + 10 * n for n in range(12)]
EIGHTY = [80 * kl for kl in MOVES]
GAP = [n / 100 for n in range(12)]

CASES: Sequence[tuple[str, dict[str, Sequence[float]], int]] = [
    # step by step, what is cut earns nothing
    ("truncation", {"truncated": [0.3, 0.5, 0.4] * 3, "reward": [0.7, 0.5, 0.6] * 3}, LARGE),
    ("truncation", {"truncated": [0.3, 0.5, 0.4] * 3, "reward": [0.5, 0.7, 0.6] * 3}, MILD),
    ("other-context", {"logprob": [-0.8, -0.1], "entropy": [0.4, 0.4]}, LARGE),
    ("other-context", {"logprob": [-0.6, -0.9], "entropy": [0.4, 0.4]}, 0),
    ("other-context", {"sampler_gap": [1.0] * 3, "sampler_ratio": [0.98] * 3}, 0),
    ("other-context", {"sampler_gap": [1.0] * 3, "sampler_ratio": [0.9] * 3}, LARGE),
    ("still-warming-up", {"learning_rate": [n * 1e-6 for n in range(12)]}, LARGE),
    ("still-warming-up", {"learning_rate": [1e-6, 2e-6, 3e-6] + [4e-6] * 9}, 0),
    ("kl-stays-small", {"kl": [0.0] + [9e-5] * 11, **FLAT, **RATE}, LARGE),
    ("kl-stays-small", {"kl": [0.0] + [1.9e-3] * 11, **FLAT, **RATE}, MILD),
    ("kl-stays-small", {"kl": [0.0] + [2.1e-3] * 11, **FLAT, **RATE}, 0),
    ("kl-stays-small", {"kl": [0.0] + [9e-5] * 11, "reward": UP, **RATE}, 0),
    # a weight of 50 holds the policy there
    ("kl-stays-small", {"kl": SMALL, "loss": [50 * kl for kl in SMALL], **FLAT, **RATE}, 0),
    ("kl-weight-large", {"kl": SMALL, "loss": [50 * kl for kl in SMALL]}, LARGE),
    ("kl-weight-large", {"kl": GROWS, "loss": [0.29 * kl for kl in GROWS]}, 0),
    ("kl-weight-large", {"kl": GROWS, "loss": [0.31 * kl for kl in GROWS]}, LARGE),
    ("kl-weight-large", {"kl": GROWS, "loss": [-0.1 * kl for kl in GROWS]}, LARGE),
    ("kl-weight-large", {"kl": GROWS, "loss": [(-1) ** n * 0.1 for n in range(12)]}, 0),
    ("kl-negative", {"kl": [-0.01] * 3 + [0.01] * 9}, MILD),
    ("kl-negative", {"kl": [-0.01] * 2 + [0.01] * 10}, 0),
    ("kl-runs-away", {"kl": FAR, "loss": [0.04 * kl for kl in FAR]}, LARGE),
    ("kl-runs-away", {"kl": FAR, "loss": [0.04 * kl for kl in FAR], "reward": UP}, 0),
    ("kl-runs-away", {"kl": FAR, "loss": [0.4 * kl for kl in FAR]}, 0),  # the KL term's own doing
    ("gradient-spikes", {"grad_norm": [0.5] * 10 + [1e3] * 2}, LARGE),
    ("gradient-spikes", {"grad_norm": [0.5] * 11 + [1e3]}, MILD),
    ("gradient-spikes", {"grad_norm": [0.5] * 11 + [999.0]}, 0),
    ("gradient-spikes", {"grad_norm": [2.0] * 11 + [1e3]}, 0),
    ("kl-spikes", {"kl": [0.1] * 11 + [300.0]}, MILD),
    ("kl-spikes", {"kl": [0.1] * 11 + [299.0]}, 0),
    # the gradients of the same rows are what it made of them
    ("kl-spikes", {"kl": [0.1] * 10 + [300.0] * 2, "grad_norm": [0.5] * 10 + [50.0] * 2}, LARGE),
    ("kl-spikes", {"kl": [0.1] * 10 + [300.0] * 2, "grad_norm": [0.5] * 10 + [49.0] * 2}, MILD),
    ("kl-spikes", {"kl": [0.1] * 11 + [300.0], "grad_norm": [0.5] * 11 + [50.0]}, MILD),
    ("kl-spikes", {"kl": [1.1] * 10 + [300.0] * 2, "grad_norm": [0.5] * 10 + [50.0] * 2}, MILD),
    ("kl-spikes", {"kl": [4.0] * 11 + [300.0]}, 0),
    ("gradient-tiny", {"grad_norm": [0.0] + [9e-7] * 4}, LARGE),
    ("gradient-tiny", {"grad_norm": [0.0] + [1.1e-6] * 4}, 0),
    ("loss-large", {"kl": MOVES, "loss": EIGHTY, "grad_norm": [900.0] * 12}, LARGE),
    ("loss-large", {"kl": MOVES, "loss": EIGHTY, "grad_norm": [9.0] * 12}, 0),
    ("correction-loses", {"correction_ess": [0.49] * 4}, MILD),
    ("correction-loses", {"correction_ess": [0.51] * 4}, 0),
    ("correction-loses", {"correction_ess": [0.19] * 4}, LARGE),
    ("correction-loses", {"correction_masked": [0.1] * 4}, MILD),
    ("correction-loses", {"correction_masked": [0.5] * 4, "correction_ess": [1.0] * 4}, LARGE),
    ("correction-by-length", {"sampler_gap": [0.01] * 4, "sampler_ratio": [0.57] * 4}, LARGE),
    ("correction-by-length", {"sampler_gap": [0.06] * 4, "sampler_ratio": [0.57] * 4}, 0),
    ("correction-by-length", {"sampler_gap": [0.01] * 4, "sampler_ratio": [0.91] * 4}, 0),
    ("gap-grows", {"sampler_gap": GAP, "length": LONGER}, MILD),
    ("gap-grows", {"sampler_gap": GAP, "length": LONGER[::-1]}, 0),
    # below 1 nat nothing speaks for an old sampler: a reward stays flat for many reasons
    ("moves-in-vain", {"kl": [0.97] * 12, **STILL}, 0),
    ("moves-in-vain", {"kl": [1.0] * 12, **STILL}, LARGE),
    ("moves-in-vain", {"kl": [1.6] * 12, **STILL, "length": LONGER}, 0),
    ("heldout-frozen", {"reward": UP, "heldout": [0.4] * 3, "kl": MOVES}, LARGE),
    ("heldout-frozen", {"reward": UP, "heldout": [0.4, 0.4, 0.401], "kl": MOVES}, 0),
    ("heldout-frozen", {"reward": WAVES, "heldout": [0.4] * 3, "kl": [1e-4] * 12}, 0),
    # a reward that a rollout or two made cannot collapse
    ("reward-collapses", {"reward": [0.03] + [0.0] * 11, "reward_std": [0.2] * 12}, 0),
    ("reward-collapses", {"reward": [0.3] + [0.0] * 11, "reward_std": [0.5] * 12}, LARGE),
    # calls that never were, where something is earned without them
    ("few-tool-calls", {"tool_calls": [0.0] * 12, "reward": WAVES}, 0),
    ("few-tool-calls", {"tool_calls": [0.0] * 12, "reward": [0.0] * 12}, MILD),
    ("few-tool-calls", {"tool_calls": [0.11] * 4 + [0.0] * 8, "reward": WAVES}, MILD),
    ("few-tool-calls", {"tool_calls": [0.09] * 4 + [0.0] * 8, "reward": WAVES}, 0),
    ("tool-failures", {"tool_failures": [1.0] * 3, "tool_calls": [0.09] * 3}, 0),
    ("tool-failures", {"tool_failures": [1.0] * 3, "tool_calls": [0.11] * 3}, LARGE),
    # the first row's gradient has nothing of the KL in it
    ("loss-large", {"kl": MOVES, "loss": EIGHTY, "grad_norm": [0.5] + [900.0] * 11}, 0),
    ("kl-weight-large", {"kl": MOVES, "loss": EIGHTY, "grad_norm": [0.5] + [900.0] * 11}, LARGE),
    ("kl-weight-large", {"kl": MOVES, "loss": EIGHTY, "grad_norm": [900.0] * 12}, 0),
    ("gradient-grows", {"grad_norm": [0.01] * 6 + [0.99] * 6}, 0),
    ("gradient-grows", {"grad_norm": [0.01] * 6 + [1.01] * 6}, LARGE),
    # mass elsewhere, and not a support that was cut
    ("other-context", {"sampler_gap": [0.2] * 3, "sampler_ratio": [0.96] * 3}, LARGE),
    ("other-context", {"sampler_gap": [0.09] * 3, "sampler_ratio": [0.96] * 3}, 0),
    ("other-context", {"sampler_gap": [1.0] * 3, "sampler_ratio": [1.5] * 3}, 0),
    ("heldout-apart", {"reward": [0.8] * 3, "heldout": [0.39] * 3}, LARGE),
    ("heldout-apart", {"reward": [0.8] * 3, "heldout": [0.41] * 3}, 0),
    # the sampler's distance: there before the first update, or not
    ("sampler-drifts", {"sampler_gap": [0.02] * 2 + [0.03] * 6 + [0.1] * 4}, LARGE),
    ("sampler-drifts", {"sampler_gap": [0.02] * 2 + [0.03] * 6 + [0.09] * 4}, 0),
    ("sampler-drifts", {"sampler_gap": [0.021] * 2 + [0.03] * 6 + [0.1] * 4}, 0),
    ("sampler-drifts", {"sampler_gap": [0.004] * 2 + [0.03] * 6 + [0.06] * 4}, LARGE),
    ("sampler-drifts", {"sampler_gap": [0.06] * 2 + [0.03] * 6 + [0.5] * 4}, 0),
]


@pytest.mark.parametrize(
    ("name", "steps", "strength"), CASES, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(CASES)]
)
def test_a_relation_is_found_at_its_bound_and_not_beside_it(
    name: str, steps: dict[str, Sequence[float]], strength: int
) -> None:
    assert (read(name, log_of(**steps)) or (None,))[0] == strength


def test_a_gap_that_comes_and_goes_is_a_sampler_that_is_synced_rarely() -> None:
    shown = CHECKS["sampler-drifts"].on(log_of(sampler_gap=[0.0, 0.1, 0.3, 0.0] * 3 + [0.0]))
    assert shown is not None
    assert shown.strength == LARGE
    assert "again and again" in shown.sentence


def test_what_is_sampled_is_not_said_to_stand_still_where_the_sampler_is_known() -> None:
    assert read("moves-in-vain", log_of(kl=[1.6] * 12, sampler_gap=[0.0] * 12, **STILL)) is None


@pytest.mark.parametrize(("bad", "strength"), [(10, LARGE), (0, 0)])
def test_advantages_that_do_not_follow_their_rewards_are_found(bad: int, strength: int) -> None:
    def advantage(g: int, c: int) -> float:
        return ([1.0, 1.0, -1.0, -1.0] if g < bad else [-1.0, 1.0, -1.0, 1.0])[c]

    log = groups_of_4(advantage=advantage)
    assert (read("advantages-of-others", log) or (None,))[0] == strength


def test_advantages_of_what_is_good_alone_are_found() -> None:
    shown = CHECKS["advantages-of-others"].on(groups_of_4(advantage=lambda g, c: float(c % 2)))
    assert shown is not None
    assert shown.strength == LARGE
    assert "exactly 0" in shown.sentence


@pytest.mark.parametrize(("power", "strength"), [(2.0, LARGE), (1.0, 0), (0.0, 0)])
def test_a_scale_of_advantages_that_is_no_deviation_s_is_found(power: float, strength: int) -> None:
    """Rewards of group g are g + 1 apart."""

    def advantage(g: int, c: int) -> float:
        return (c % 2 - 0.5) * float((g + 1) ** (1 - power))

    log = groups_of_4(reward=lambda g, c: float(c % 2) * (g + 1), advantage=advantage)
    assert (read("scale-uneven", log) or (None,))[0] == strength


@pytest.mark.parametrize(("cut", "strength"), [(2, MILD), (1, 0), (10, LARGE)])
@pytest.mark.parametrize("side", ["beginning", "end"])
def test_prompts_without_their_beginning_or_end_are_found_by_the_template(
    cut: int, strength: int, side: str
) -> None:
    whole = "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    part = whole[20:] if side == "beginning" else whole[:20]
    prompts = [part if n < cut else whole for n in range(10)]
    found = pd.DataFrame({"step": 1.0, "prompt": prompts, "completion": "x"})
    shown = CHECKS["prompt-cut"].on(Log("made-up", "JSONL", found))
    assert shown is not None
    assert shown.strength == strength
    assert not strength or side in shown.sentence


def test_tools_that_say_one_thing_are_found() -> None:
    def said(text: str) -> str:
        return json.dumps([{"role": "assistant", "content": ""}, {"role": "tool", "content": text}])

    same = groups_of_4(count=3, completion=lambda g, c: said("none" if c < 2 else f"{g}{c}"))
    assert (read("tools-alike", same) or (None,))[0] == MILD
    other = groups_of_4(count=3, completion=lambda g, c: said(f"{g}{c}"))
    assert (read("tools-alike", other) or (None,))[0] == 0
    assert read("tools-alike", groups_of_4()) is None


def test_a_call_in_a_model_s_own_words_is_a_call() -> None:
    words = json.dumps([{"role": "assistant", "content": '<tool_call>{"name": "f"}</tool_call>'}])
    found = read("unanswered-calls", groups_of_4(completion=lambda g, c: words))
    assert (found or (None,))[0] == STOPS


@pytest.mark.parametrize(("noise", "strength"), [(0.0, LARGE), (40.0, 0)])
def test_a_reward_that_is_the_length_is_found(noise: float, strength: int) -> None:
    def length(g: int, c: int) -> int:
        return 10 + 5 * c + g

    log = groups_of_4(
        completion=lambda g, c: "x" * length(g, c),
        reward=lambda g, c: length(g, c) + noise * ((g * 7 + c * 3) % 5),
    )
    assert (read("reward-is-length", log) or (None,))[0] == strength


def test_a_length_that_only_goes_with_right_and_wrong_is_no_reward_for_it() -> None:
    log = groups_of_4(completion=lambda g, c: "x" * (10 + c % 2), reward=lambda g, c: float(c % 2))
    assert read("reward-is-length", log) is None


@pytest.mark.parametrize(("other", "strength"), [(3, MILD), (7, LARGE), (0, 0)])
def test_equal_texts_with_other_rewards_are_found(other: int, strength: int) -> None:
    log = groups_of_4(
        completion=lambda g, c: f"x{c // 2}",
        reward=lambda g, c: float(c // 2) + (0.5 if g < other and c == 1 else 0.0),
    )
    assert (read("another-judgement", log) or (None,))[0] == strength


@pytest.mark.parametrize(("falls", "strength"), [(0.31, LARGE), (0.29, 0)])
def test_a_small_part_that_is_given_up_for_a_large_one_is_found(
    falls: float, strength: int
) -> None:
    """By the scale of the largest part, nothing falls."""
    large = [0.0] * 4 + [50.0] * 4 + [100.0] * 4
    small = [0.5] * 4 + [0.4] * 4 + [0.5 * (1 - falls)] * 4
    log = Log("made-up", "JSONL", pd.DataFrame(), parts=table({"length": large, "answer": small}))
    assert (read("part-given-up", log) or (None,))[0] == strength
    assert (read("parts-pull-apart", log) or (None,))[0] == 0


@pytest.mark.parametrize(("factor", "strength"), [(1.0, 0), (3.0, LARGE)])
def test_an_advantage_beyond_its_group_s_scale_is_none_where_all_groups_have_one_scale(
    factor: float, strength: int
) -> None:
    """The first group's advantages are `factor` times as large as those of the others."""

    def advantage(g: int, c: int) -> float:
        return 4 * (c % 2 - 0.5) * (factor if g < 3 else 1.0)

    assert (read("advantage-bound", groups_of_4(advantage=advantage)) or (None,))[0] == strength


def test_parts_that_conflict_and_do_not_fall_cost_nothing() -> None:
    apart: dict[str, Any] = {
        "part/a": lambda g, c: float(c % 2),
        "part/b": lambda g, c: float((c + 1) % 2),
    }
    log = groups_of_4(**apart)
    assert (read("parts-conflict", log) or (None,))[0] == LARGE
    still = Log("made-up", "JSONL", log.completions, parts=table({"a": WAVES, "b": WAVES}))
    assert (read("parts-conflict", still) or (None,))[0] == 0
    falls = Log("made-up", "JSONL", log.completions, parts=table({"a": UP, "b": UP[::-1]}))
    assert (read("parts-conflict", falls) or (None,))[0] == LARGE


@pytest.mark.parametrize(("gap", "first"), [(1.0, "sequence-mismatch"), (2.0, "hidden-context")])
def test_a_trainer_that_does_not_know_what_was_asked_is_told_from_one_that_reads_it_otherwise(
    gap: float, first: str
) -> None:
    log = log_of(reward=WAVES, sampler_gap=[gap] * 12, sampler_ratio=[0.8] * 12)
    assert suspects(log)[0].slug == first
