"""What each check reads from a log, at its bound and just beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlvr_debug.causes.check import LARGE, MILD, STOPS, log_checks
from rlvr_debug.diagnosis.rank import suspects
from rlvr_debug.files import read_yaml
from rlvr_debug.logs.log import Log
from rlvr_debug.logs.names import quantities

CHECKS = {check.name: check for check in log_checks()}
UP = [0.1] * 4 + [0.2] * 4 + [0.9] * 4
LEVEL = [0.5] * 12
WAVES = [0.5, 0.4, 0.6] * 4
CALL = json.dumps([{"role": "assistant", "tool_calls": [{"name": "look_up"}], "content": ""}])
SAID = json.dumps([{"role": "assistant", "content": "x"}])


def table(columns: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    size = max(map(len, columns.values()), default=0)
    padded = {
        name: [*values, *[math.nan] * (size - len(values))] for name, values in columns.items()
    }
    return pd.DataFrame(padded, index=range(1, size + 1), dtype=float)


def log_of(**steps: Sequence[float]) -> Log:
    return Log("made-up", "JSONL", pd.DataFrame(), steps=table(steps))


def groups_of_4(count: int = 10, steps: int = 1, **columns: Any) -> Log:
    """`count` groups a step; a column is a function of the group's and the completion's number."""
    columns = {"completion": lambda g, c: f"x{c}", "reward": lambda g, c: float(c % 2), **columns}
    places = [(s, g, c) for s in range(steps) for g in range(count) for c in range(4)]
    named = {name: [value(g, c) for _, g, c in places] for name, value in columns.items()}
    where = {"step": [float(s) for s, _, _ in places], "prompt": [f"p{g}" for _, g, _ in places]}
    return Log("made-up", "JSONL", pd.DataFrame({**where, **named}))


def read(name: str, log: Log) -> tuple[int, dict[str, Any]] | None:
    """The strength and the measured numbers, as a diagnosis has them."""
    shown = CHECKS[name].on(log)
    if shown is None:
        return None
    assert 0 <= shown.amount <= 1 or not shown.strength
    assert shown.sentence.endswith(".")
    return shown.strength, dict(shown.measured)


# by check: what is logged, and what is found
CASES = read_yaml(Path(__file__).with_name("log_checks.yaml"))
FINDS = {"too little": None, "nothing": 0, "mild": MILD, "large": LARGE, "stops": STOPS}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_a_check_finds_at_its_bound_and_not_beside_it(name: str, case: Mapping[str, Any]) -> None:
    steps = {quantity: values for quantity, values in case.items() if quantity != "finds"}
    found = read(name, log_of(**steps))
    assert (found and found[0]) == FINDS[case["finds"]]


def test_every_check_is_tried_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in CHECKS if name not in CASES and f'"{name}"' not in source] == []


def test_what_is_not_finite_is_counted_by_quantity() -> None:
    log = Log("made-up", "JSONL", pd.DataFrame(), nonfinite={"loss": 2, "reward": 3})
    assert read("not-finite", log) == (STOPS, {"rows with loss not finite": 2.0})


def test_conversations_that_end_in_a_call_are_counted_among_those_that_are_messages() -> None:
    def said(g: int, c: int) -> str:
        return "no messages" if c < 2 else CALL if g < 2 else SAID

    found = read("unanswered-calls", groups_of_4(completion=said))
    assert found is not None
    assert (found[0], list(found[1].values())) == (MILD, [pytest.approx(0.2)])
    assert read("unanswered-calls", groups_of_4(completion=lambda g, c: "text")) is None


def test_copies_are_counted_beyond_the_first() -> None:
    twice = groups_of_4(completion=lambda g, c: f"x{c if g else 0}" if g < 5 else "x")
    found = read("duplicates", twice)
    assert found is not None
    assert (found[0], list(found[1].values())) == (LARGE, [pytest.approx(0.6)])


def test_equal_rewards_count_only_where_completions_differ() -> None:
    same = groups_of_4(reward=lambda g, c: 1.0 if g < 7 else float(c))
    assert (read("equal-rewards", same) or (None,))[0] == MILD
    copies = groups_of_4(reward=lambda g, c: 1.0, completion=lambda g, c: "x")
    assert (read("equal-rewards", copies) or (None,))[0] == 0
    assert (read("dead-groups", copies) or (None,))[0] == STOPS


@pytest.mark.parametrize(("bad", "strength"), [(1, LARGE), (0, 0)])
def test_groups_whose_advantages_do_not_cancel_are_counted(bad: int, strength: int) -> None:
    log = groups_of_4(advantage=lambda g, c: 1.0 if g < bad and c == 1 else (-1.0) ** c)
    assert (read("group-means", log) or (None,))[0] == strength


@pytest.mark.parametrize(("largest", "strength"), [(1.5, 0), (1.6, LARGE)])
def test_advantages_beyond_what_a_group_allows_are_found(largest: float, strength: int) -> None:
    """Of four, at most 3 / sqrt(4)."""
    log = groups_of_4(advantage=lambda g, c: largest if c == 0 else -largest / 3)
    assert (read("advantage-bound", log) or (None,))[0] == strength


@pytest.mark.parametrize(("apart", "strength"), [(0.05, LARGE), (0.2, 0)])
def test_small_deviations_of_groups_are_found_beside_the_rewards_scale(
    apart: float, strength: int
) -> None:
    log = groups_of_4(reward=lambda g, c: 1.0 - apart * (c % 2), count=12)
    assert (read("tiny-deviations", log) or (None,))[0] == strength


@pytest.mark.parametrize(("falls", "strength"), [(0.11, LARGE), (0.09, 0)])
def test_a_part_that_rises_while_another_falls_is_found(falls: float, strength: int) -> None:
    parts = table({"a": [0.0] * 4 + [0.5] * 4 + [1.0] * 4, "b": [0.5] * 8 + [0.5 - falls] * 4})
    found = read("parts-pull-apart", Log("made-up", "JSONL", pd.DataFrame(), parts=parts))
    assert found is not None
    assert found == (
        strength,
        {"change of a": pytest.approx(1.0), "change of b": pytest.approx(-falls)},
    )


def test_parts_against_each_other_within_groups_are_found() -> None:
    against: dict[str, Any] = {"part/a": lambda g, c: float(c), "part/b": lambda g, c: g - float(c)}
    found = read("parts-conflict", groups_of_4(**against))
    assert found is not None
    assert (found[0], list(found[1].values())) == (LARGE, [pytest.approx(-1.0)])
    beside: dict[str, Any] = {
        "part/a": lambda g, c: float(c % 2),
        "part/b": lambda g, c: float(c // 2),
    }
    assert (read("parts-conflict", groups_of_4(**beside)) or (None,))[0] == 0


def test_a_part_that_never_differs_is_named_and_one_that_always_differs_by_1_is_not() -> None:
    log = Log(
        *("made-up", "JSONL", pd.DataFrame()),
        steps=table({"reward": LEVEL}),
        parts=table({"a": LEVEL, "b": LEVEL}),
        part_stds=table({"a": [0.0] * 4, "b": [1.0] * 4}),
    )
    shown = CHECKS["dead-part"].on(log)
    assert shown is not None
    assert shown.strength == MILD
    assert " a " in f" {shown.sentence} "
    assert list(shown.measured.values()) == [1.0]


@pytest.mark.parametrize(("factor", "strength"), [(1.0, LARGE), (0.99, 0)])
def test_a_gap_to_the_sampler_is_found_at_its_bound(factor: float, strength: int) -> None:
    from rlvr_debug.causes.sampler_gap import gap

    one = gap(log_of(sampler_gap=[1.0] * 12))
    assert one is not None
    found = read("sampler-gap", log_of(sampler_gap=[factor * one.bound] * 12))
    assert found is not None
    assert found[0] == strength


def test_an_advantage_that_no_scaling_gives_is_said_with_the_group_s_size_where_it_is_known() -> (
    None
):
    check, steps = CHECKS["advantages-too-large"], {"advantage_max": [25.0], "group_std": [0.04]}
    alone = check.on(log_of(**steps))
    assert alone is not None
    # (N - 1) / sqrt(N) is 25 between these
    assert [(n - 1) / math.sqrt(n) > 25 for n in (626, 627)] == [False, True]
    assert "in groups of 627 rollouts or more" in alone.sentence
    known = check.on(replace(groups_of_4(), steps=table(steps)))
    assert known is not None
    assert "no right scaling in groups of 4 gives more than 1.50." in known.sentence


@pytest.mark.parametrize("name", CHECKS)
def test_what_is_logged_and_never_finite_is_too_little_of_it(name: str) -> None:
    """One such log ended in a traceback: of a sampler's gap that was infinite in every row."""
    for names in CHECKS[name].needs:
        logged = dict.fromkeys((n for n in names if n in quantities()), 12)
        log = Log("made-up", "JSONL", pd.DataFrame(), nonfinite=logged)
        if logged and len(logged) == len(names):
            assert log.has(*names)
            assert (read(name, log) is None) == (name != "not-finite")


# --- how quantities go together, and what texts say


def test_a_gap_that_comes_and_goes_is_a_sampler_that_is_synced_rarely() -> None:
    shown = CHECKS["sampler-drifts"].on(log_of(sampler_gap=[0.0, 0.1, 0.3, 0.0] * 3 + [0.0]))
    assert shown is not None
    assert shown.strength == LARGE
    assert "again and again" in shown.sentence


def test_what_is_sampled_is_not_said_to_stand_still_where_the_sampler_is_known() -> None:
    assert (
        read(
            "moves-in-vain",
            log_of(
                kl=[1.6] * 12, sampler_gap=[0.0] * 12, reward=LEVEL, reward_std=LEVEL, length=LEVEL
            ),
        )
        is None
    )


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
